"""What the models are sent: the jinja templates in `prompts/`, filled in."""

from functools import cache
from typing import Any

from jinja2 import PackageLoader, StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lightning_apo.markers import without_marks


def render(name: str, **values: Any) -> str:
    """Fill in `prompts/{name}.jinja`.

    Raises:
        jinja2.UndefinedError: When the template needs a value that is not given.
    """
    return _environment().get_template(f"{name}.jinja").render(values)


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        loader=PackageLoader("lightning_apo", "prompts"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["without_marks"] = without_marks
    return environment
