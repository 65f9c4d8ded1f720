"""The project that `agl init` writes: the files in `project/`, without the end of their names."""

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

_SUFFIX = ".template"
"""So that no tool takes these files for part of the package."""


def project_files() -> Iterator[tuple[PurePosixPath, bytes]]:
    """Give the files of the project: where each belongs, and what is in it; sorted by name."""
    yield from _files_in(files(__name__) / "project", PurePosixPath())


def _files_in(folder: Traversable, place: PurePosixPath) -> Iterator[tuple[PurePosixPath, bytes]]:
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        if entry.is_dir():
            yield from _files_in(entry, place / entry.name)
        elif entry.name.endswith(_SUFFIX):
            yield place / entry.name.removesuffix(_SUFFIX), entry.read_bytes()
