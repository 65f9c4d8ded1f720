"""The examples of suites in docs/plugins.md pass, as their readers would run them; docs/components.md is complete."""

import subprocess
import sys
from pathlib import Path

import pytest

from lightning_core import testing
from lightning_core.store import LightningStoreCapabilities
from lightning_core.store.backend import StoreBackend
from tests.docs.run_page import blocks

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"
STORES = " ".join(PAGE.with_name("components.md").read_text(encoding="utf-8").split())
EXAMPLES = {
    block.title: block.code
    for block in blocks(PAGE.read_text(encoding="utf-8"))
    if block.title is not None and block.title.startswith("test_")
}
SETTINGS = """
[pytest]
filterwarnings = error
asyncio_mode = strict
asyncio_default_fixture_loop_scope = function
"""
SUITES = [name for name in testing.__all__ if name.endswith("Suite")]


@pytest.mark.parametrize("suite", SUITES)
def test_each_suite_has_an_example(suite: str):
    algorithms = PAGE.with_name("algorithms.md").read_text(encoding="utf-8")  # which runs its own
    assert any(f"({suite}):" in code for code in [*EXAMPLES.values(), algorithms])


def test_the_page_counts_what_a_database_implements():
    required = StoreBackend.__abstractmethods__
    properties = sorted(name for name in required if isinstance(getattr(StoreBackend, name), property))
    defaults = [name for name in vars(StoreBackend) if not name.startswith("_") and name not in required]
    assert f"{len(required) - len(properties)} operations, and the properties `name` and `capabilities`" in STORES
    assert properties == ["capabilities", "name"]
    assert all(f"`{name}`" in STORES for name in defaults)


def test_the_page_names_every_capability():
    assert [name for name in LightningStoreCapabilities.__annotations__ if f"| `{name}` |" not in STORES] == []


def test_the_examples_pass(tmp_path: Path):
    (tmp_path / "pytest.ini").write_text(SETTINGS, encoding="utf-8")
    for title, code in EXAMPLES.items():
        (tmp_path / title).write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *EXAMPLES],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
