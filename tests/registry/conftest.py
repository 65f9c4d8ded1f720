"""A folder of installed distributions that a test makes up."""

import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_core.registry import Registry


class Site:
    """A folder of installed distributions, as an installer leaves it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def distribution(self, name: str, version: str, entry_points: str) -> None:
        information = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (information / "entry_points.txt").write_text(entry_points)

    def module(self, name: str, source: str) -> None:
        (self.folder / f"{name}.py").write_text(source)

    def registry(self) -> Registry:
        distributions = importlib.metadata.distributions(path=[str(self.folder)])
        return Registry(entry_point for each in distributions for entry_point in each.entry_points)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(sys.modules)
    yield Site(tmp_path)
    for name in set(sys.modules) - known:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
