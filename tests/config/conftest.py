import importlib
from collections.abc import Callable
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
def folder(own_folder: Path) -> Path:
    """An empty folder."""
    return own_folder


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
