import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

AGENT = """
from lightning_core import rollout

@rollout
async def solve(task):
    return float(task)

NOT_AN_AGENT = 5
"""

WriteFile = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder; what is imported from it is forgotten afterwards, and so is its place in the search path."""
    monkeypatch.setattr(sys, "path", sys.path.copy())
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def write(folder: Path) -> WriteFile:
    """Write a file into the folder, beside a module `my_agent` with an agent `solve`."""

    def write_file(name: str, content: str | bytes) -> Path:
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        importlib.invalidate_caches()
        return path

    write_file("my_agent.py", AGENT)
    return write_file
