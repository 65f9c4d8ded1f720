"""`agl plugins`: what is installed, from metadata alone, or with a look at each."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import click

from lightning_core.errors import InvalidComponent
from lightning_core.registry import Component, default_registry
from lightning_core.texts import print_table

HEADER = ("kind", "name", "distribution", "version", "object", "state")
USABLE = ("ok", "blocked")
"""The states of what is as somebody wants it to be."""


@click.command()
@click.option("--check", is_flag=True, help="Import each component, and say which are broken.")
@click.option("--json", "as_json", is_flag=True, help="Write a JSON list of objects instead of a table.")
@click.pass_context
def plugins(context: click.Context, check: bool, as_json: bool) -> None:
    """List the installed components.

    Without --check nothing of them is imported. What is known against a component stands in its state, with the
    reason on stderr (in JSON under `problem`):

    \b
      ok            nothing, as far as metadata tells; with --check, it can be used
      blocked       AGL_PLUGINS_BLOCK names it (names, kind:name or distributions, separated by commas)
      duplicate     two distributions have this name
      incompatible  it requires another version of lightning-core
      broken        it cannot be imported, or is not what it should be (with --check)

    With --check the exit status is 1 when any is duplicate, incompatible or broken.

    \b
    Example:
      agl plugins --check --json
    """
    registry = default_registry()
    components = registry.check(_verifier()) if check else registry.inventory()
    rows = [dataclasses.astuple(component) for component in components]
    if as_json:
        click.echo(json.dumps([dict(zip([*HEADER, "problem"], row, strict=True)) for row in rows], indent=2))
    else:
        print_table(HEADER, [row[: len(HEADER)] for row in rows])
        for problem in dict.fromkeys(filter(None, (component.problem for component in components))):
            click.echo(problem, err=True)
    if check and any(component.state not in USABLE for component in components):
        context.exit(1)


def _verifier() -> Callable[[Component, Any], None]:
    """Return what refuses a component that is not what its kind has to be."""
    # imported here, because it is much, and a plain list does not need it
    from lightning_core.agent import Environment, Grader
    from lightning_core.config.components import EXPECTED
    from lightning_core.config.model import COMPONENTS
    from lightning_core.plugins import Hooks
    from lightning_core.registry.registry import require_buildable
    from lightning_core.runs.loggers import RunLogger

    expected: dict[str, type] = {"graders": Grader, "environments": Environment, "loggers": RunLogger}
    expected |= {COMPONENTS[key]: kind for key, kind in EXPECTED.items()}

    def verify(component: Component, loaded: object) -> None:
        label = f"{component} ({component.value})"
        if component.kind in expected:
            require_buildable(label, loaded, expected[component.kind])
        elif component.kind == "commands" and not isinstance(loaded, click.Command):
            raise InvalidComponent(f"{label} is a {type(loaded).__name__}; it has to be a click command")
        elif component.kind == "hooks":
            try:
                Hooks([loaded])
            except Exception as exc:
                raise InvalidComponent(f"{label} cannot be used: {exc}") from exc

    return verify
