"""What the models are sent: jinja templates, those in `prompts/` or others, filled in."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, TemplateSyntaxError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lightning_apo.experiment import Experiment
from lightning_core.errors import AlgorithmError
from lightning_core.types import PromptTemplate

_MARK = re.compile(r"</?(?:prompt_template|critique)>")


def find_mark(text: str) -> str | None:
    """Return the first mark in a text, or None."""
    found = _MARK.search(text)
    return found and found[0]


def without_marks(text: str) -> str:
    """Put square brackets in place of the angle brackets of marks."""
    return _MARK.sub(lambda mark: f"[{mark[0][1:-1]}]", text)


EXPERIMENTS = (
    Experiment(
        task="a task",
        turns=["user: a question", "assistant: an answer"],
        operations=["search(query=a question) gave an answer"],
        messages=["a message"],
        reward=0.5,
        failure=None,
        rewards={"accuracy": 0.5, "speed": 1.0},
    ),
    Experiment(task="another task", turns=[], operations=[], messages=[], reward=None, failure="ValueError: no answer"),
)
"""What a template is tried out with."""


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


_SHOWN = (
    ShownPrompt("one", "Template one: {question}", "f-string", ("{question}",)),
    ShownPrompt("two", "Template two", "jinja", ()),
)


class Request:
    """A request to a model, to be filled in.

    Args:
        option: The option that the template was given with, for messages.
        template: The text of a jinja template, or the path of a file; what has no line break and neither `{{` nor
            `{%` is a path. None for the plugin's own.
        default: The file in `prompts/` that is the plugin's own.
        tried_with: Sets of values. The template must not fail with any of them, must use no other names, and must
            show what stands in `shown`.
        shown: For each set, the texts that have to be in what the template makes of it.

    Raises:
        ValueError: Names the option, and says what is wrong with the template.
    """

    def __init__(
        self,
        option: str,
        template: str | Path | None,
        *,
        default: str,
        tried_with: tuple[Mapping[str, Any], ...],
        shown: tuple[tuple[str, ...], ...],
    ) -> None:
        self._option = option
        self.source = _read(option, template, default)
        """The text of the template."""
        known = tried_with[0].keys()
        try:
            unknown = sorted(meta.find_undeclared_variables(_environment().parse(self.source)) - known)
            self._template: Template = _environment().from_string(self.source)
        except TemplateError as exc:
            raise ValueError(_broken(option, exc)) from exc
        if unknown:
            raise ValueError(
                f"{option} uses {', '.join(map(repr, unknown))}, which it is not given; "
                f"it is given {', '.join(map(repr, known))}"
            )
        for values, texts in zip(tried_with, shown, strict=True):
            try:
                made = self._template.render(values)
            except Exception as exc:  # whatever its expressions raise
                raise ValueError(_broken(option, exc)) from exc
            if lacking := [text for text in texts if text not in made]:
                raise ValueError(f"{option} does not show {lacking[0]!r} where it is given that; show all of {texts}")

    def fill_in(self, **values: Any) -> str:
        """Return the text of the request.

        Raises:
            AlgorithmError: When the template fails with these values; names the option.
        """
        try:
            return self._template.render(values)
        except Exception as exc:  # whatever its expressions raise, such as a division by a reward of zero
            raise AlgorithmError(f"{_broken(self._option, exc)}; this came up with runs of the agent") from exc


def critic_request(template: str | Path | None = None) -> Request:
    """Return the request for a critique.

    It is given `prompts` (those under review, a `ShownPrompt` each), `other_prompts` and `experiments`.
    """
    one, two = _SHOWN
    return Request(
        "critic_template",
        template,
        default="critic",
        tried_with=(
            {"prompts": [one], "other_prompts": [two], "experiments": EXPERIMENTS},
            {"prompts": [one, two], "other_prompts": [], "experiments": EXPERIMENTS},
        ),
        shown=((one.template,), (one.template, two.template)),
    )


def editor_request(template: str | Path | None = None) -> Request:
    """Return the request for an edit. It is given `prompt` (a `ShownPrompt`), `other_prompts` and `critique`."""
    one, two = _SHOWN
    return Request(
        "editor_template",
        template,
        default="editor",
        tried_with=(
            {"prompt": one, "other_prompts": [], "critique": "- Too vague."},
            {"prompt": two, "other_prompts": [one], "critique": "- Too vague."},
        ),
        shown=((one.template, "- Too vague."), (two.template, "- Too vague.")),
    )


def _broken(option: str, exc: Exception) -> str:
    where = f", line {exc.lineno}" if isinstance(exc, TemplateSyntaxError) else ""
    return f"{option} is a broken jinja template{where}: {type(exc).__name__}: {exc}"


def _read(option: str, template: str | Path | None, default: str) -> str:
    if template is None:
        return (files("lightning_apo") / "prompts" / f"{default}.jinja").read_text(encoding="utf-8")
    if not isinstance(template, str | Path):
        raise ValueError(f"{option} is {template!r}; it has to be the text of a jinja template, or the path of one")
    if isinstance(template, str) and any(mark in template for mark in ("\n", "{{", "{%")):
        return template
    try:
        return Path(template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ValueError(
            f"{option} names the file {str(template)!r}, which cannot be read: {exc}. Give the path of a jinja "
            "template, from the current folder, or its text"
        ) from exc


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["without_marks"] = without_marks
    return environment
