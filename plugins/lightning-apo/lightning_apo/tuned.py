"""Which prompts of a bundle are tuned."""

from collections.abc import Sequence

from lightning_apo.markers import find_mark
from lightning_core.errors import InvalidInput
from lightning_core.types import NamedResources, PromptTemplate


def tuned_prompts(resources: NamedResources, names: Sequence[str] | None) -> dict[str, PromptTemplate]:
    """Return the prompts with these names; all of them where there are no names.

    Raises:
        InvalidInput: When there is none, a name is no prompt's, or a prompt cannot be edited.
    """
    prompts = {name: resource for name, resource in resources.items() if isinstance(resource, PromptTemplate)}
    if not prompts:
        raise InvalidInput(
            "apo improves the prompt templates of the initial resources, and they have none; "
            "give one, as in initial_resources={'main_prompt': PromptTemplate(template='...')}"
        )
    if unknown := [name for name in names or () if name not in prompts]:
        raise InvalidInput(
            f"prompt_names has {unknown[0]!r}, which is no prompt template of the initial resources; "
            f"they have {', '.join(map(repr, prompts))}"
        )
    tuned = {name: prompt for name, prompt in prompts.items() if names is None or name in names}
    for name, prompt in tuned.items():
        if mark := find_mark(prompt.template):
            raise InvalidInput(
                f"prompt {name!r} contains {mark!r}, which marks the prompt in requests to a model; write it otherwise"
            )
        try:
            prompt.placeholders()
        except ValueError as exc:
            raise InvalidInput(f"prompt {name!r} cannot be used: {exc}") from exc
    return tuned
