"""`agl plugins`: what is installed, from metadata alone, or with a look at each."""

import dataclasses
import json

import click

from lightning_core.registry import default_registry
from lightning_core.texts import print_table

HEADER = ("kind", "name", "distribution", "version", "object", "state")


@click.command()
@click.option("--check", is_flag=True, help="Import each component, and say which are broken.")
@click.option("--json", "as_json", is_flag=True, help="Write a JSON list of objects instead of a table.")
@click.pass_context
def plugins(context: click.Context, check: bool, as_json: bool) -> None:
    """List the installed components.

    Without --check nothing of them is imported. What is known against a component stands in its state, with the
    reason on stderr (in JSON under `problem`):

    \b
      ok         nothing, as far as metadata tells; with --check, it can be used
      duplicate  two distributions have this name
      broken     it cannot be imported (with --check)

    With --check the exit status is 1 when any is duplicate or broken.

    \b
    Example:
      agl plugins --check --json
    """
    registry = default_registry()
    components = registry.check() if check else registry.inventory()
    rows = [dataclasses.astuple(component) for component in components]
    if as_json:
        click.echo(json.dumps([dict(zip([*HEADER, "problem"], row, strict=True)) for row in rows], indent=2))
    else:
        print_table(HEADER, [row[: len(HEADER)] for row in rows])
        for problem in dict.fromkeys(filter(None, (component.problem for component in components))):
            click.echo(problem, err=True)
    if check and any(component.state != "ok" for component in components):
        context.exit(1)
