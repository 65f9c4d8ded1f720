"""`agl plugins`: what is installed, from metadata alone."""

import dataclasses
import json
import sys
from collections.abc import Sequence

import click

from lightning_core.registry import KINDS, Component, default_registry

HEADER = ("kind", "name", "distribution", "version", "object")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Write a JSON list of objects instead of a table.")
def plugins(as_json: bool) -> None:
    """List the installed components.

    Nothing of them is imported, so one that is broken is listed too.

    \b
    Example:
      agl plugins --json
    """
    components = [component for kind in KINDS for component in default_registry().components(kind)]
    if as_json:
        click.echo(json.dumps([_record(component) for component in components], indent=2))
        return
    rows = [tuple(_record(component).values()) for component in components]
    if sys.stdout.isatty():
        _print_table(rows)
    else:
        click.echo(plain_table(rows))


def plain_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows below the header, in columns two spaces apart: for `grep`, `awk` and files."""
    lines = [HEADER, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)


def _record(component: Component) -> dict[str, str]:
    return dict(zip(HEADER, dataclasses.astuple(component), strict=True))


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    # imported here, so that a script does not wait for it
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in HEADER:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
