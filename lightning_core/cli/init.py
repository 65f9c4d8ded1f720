"""`agl init`: a small project to start from."""

import shlex
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath

import click

from lightning_core.registry import default_registry


class CannotWrite(click.ClickException):
    """The project cannot be written there."""

    exit_code = 2


@click.command()
@click.argument("folder", metavar="[DIR]", type=click.Path(path_type=Path), default=Path())
def init(folder: Path) -> None:
    """Write a small project into DIR, which trains at once.

    It has an agent, data, a config and tests, and needs no account and no network. Without DIR it is in the current
    folder. No file is ever overwritten.

    \b
    Example:
      agl init demo
      cd demo
      agl train config.yaml
    """
    project = list(project_files())
    there = [str(folder / place) for place, _ in project if (folder / place).exists()]
    if there:
        raise CannotWrite(
            f"nothing was written, because this is there already: {', '.join(there)}; name another folder"
        )
    try:
        for place, content in project:
            path = folder / place
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(content)
            click.echo(f"wrote {path}")
    except OSError as exc:
        raise CannotWrite(f"cannot write the project: {exc.filename}: {exc.strerror}") from exc
    click.echo()
    if all(component.name != "apo" for component in default_registry().components("algorithms")):
        click.echo(
            "The project uses the algorithm 'apo', which is not installed; it ships in lightning-apo. "
            "Install that from a checkout of Lightning Core: pip install . ./plugins/lightning-apo\n"
        )
    enter = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    click.echo(f"Now: {enter}agl train config.yaml")


_SUFFIX = ".template"
"""So that no tool takes these files for part of the package."""


def project_files() -> Iterator[tuple[PurePosixPath, bytes]]:
    """Give the files of the project, in `scaffold/`: where each belongs, and what is in it; sorted by name."""
    yield from _files_in(files("lightning_core.cli") / "scaffold", PurePosixPath())


def _files_in(folder: Traversable, place: PurePosixPath) -> Iterator[tuple[PurePosixPath, bytes]]:
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        if entry.is_dir():
            yield from _files_in(entry, place / entry.name)
        elif entry.name.endswith(_SUFFIX):
            yield place / entry.name.removesuffix(_SUFFIX), entry.read_bytes()
