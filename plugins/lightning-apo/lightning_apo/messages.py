"""What the models are sent: jinja templates, those in `prompts/` or others, filled in."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, TemplateSyntaxError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lightning_core.errors import AlgorithmError
from lightning_core.types import PromptTemplate

_MARK = re.compile(r"</?(?:prompt_template|critique)>")


def find_mark(text: str) -> str | None:
    """Return the first mark in a text, or None."""
    match = _MARK.search(text)
    return match and match[0]


def without_marks(text: str) -> str:
    """Put square brackets in place of the angle brackets of marks."""
    return _MARK.sub(lambda mark: f"[{mark[0][1:-1]}]", text)


@dataclass(frozen=True, slots=True)
class ShownPrompt:
    """A prompt of the agent, as it is shown to a model."""

    name: str
    """Its name among the resources."""
    template: str
    engine: str
    placeholders: tuple[str, ...]
    """As they are written in the template, such as `{question}`."""

    @classmethod
    def of(cls, name: str, prompt: PromptTemplate) -> "ShownPrompt":
        """Show a prompt."""
        names = sorted(prompt.placeholders())
        written = [f"{{{{ {each} }}}}" if prompt.engine == "jinja" else f"{{{each}}}" for each in names]
        return cls(name, prompt.template, prompt.engine, tuple(written))


class Request:
    """A request to a model, to be filled in.

    Args:
        option: The option that the template was given with, for messages.
        template: The text of a jinja template; None for the plugin's own.
        default: The file in `prompts/` that is the plugin's own.
        shows: The names that the template has to use.
        knows: Others that it may use.

    Raises:
        ValueError: Names the option, and says what is wrong with the template.
    """

    def __init__(
        self, option: str, template: str | None, *, default: str, shows: Sequence[str], knows: Sequence[str]
    ) -> None:
        self._option = option
        file = files("lightning_apo") / "prompts" / f"{default}.jinja"
        self.source = file.read_text(encoding="utf-8") if template is None else template
        """The text of the template."""
        try:
            used = meta.find_undeclared_variables(_environment().parse(self.source))
            self._template: Template = _environment().from_string(self.source)
        except TemplateError as exc:
            raise ValueError(_broken(option, exc)) from exc
        given = (*shows, *knows)
        if unknown := sorted(used.difference(given)):
            raise ValueError(
                f"{option} uses {', '.join(map(repr, unknown))}, which it is not given; "
                f"it is given {', '.join(map(repr, given))}"
            )
        if lacking := [name for name in shows if name not in used]:
            raise ValueError(f"{option} does not show {lacking[0]!r}, which the model has to see; add it")

    def fill_in(self, **values: Any) -> str:
        """Return the text of the request.

        Raises:
            AlgorithmError: When the template fails with these values; names the option.
        """
        try:
            return self._template.render(values)
        except Exception as exc:  # whatever its expressions raise, such as a division by a reward of zero
            raise AlgorithmError(f"{_broken(self._option, exc)}; this came up with runs of the agent") from exc


def critic_request(template: str | None = None) -> Request:
    """Return the request for a critique.

    It is given `prompt` (that under review, a `ShownPrompt`), `other_prompts` and `experiments`.
    """
    knows = ("experiments", "other_prompts")
    return Request("critic_template", template, default="critic", shows=("prompt",), knows=knows)


def editor_request(template: str | None = None) -> Request:
    """Return the request for an edit. It is given `prompt` (a `ShownPrompt`), `other_prompts` and `critique`."""
    shows = ("prompt", "critique")
    return Request("editor_template", template, default="editor", shows=shows, knows=("other_prompts",))


def _broken(option: str, exc: Exception) -> str:
    where = f", line {exc.lineno}" if isinstance(exc, TemplateSyntaxError) else ""
    return f"{option} is a broken jinja template{where}: {type(exc).__name__}: {exc}"


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["without_marks"] = without_marks
    return environment
