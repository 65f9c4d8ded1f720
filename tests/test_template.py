"""The template of a plugin: copied, renamed and installed, it works."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_core.testing import AlgorithmSuite

TEMPLATE = Path(__file__).resolve().parent.parent / "plugins" / "_template"


def copied(folder: Path, name: str) -> Path:
    """Copy the template and rename the copy, as its script says."""
    plugin = folder / f"lightning-{name}"
    shutil.copytree(TEMPLATE, plugin, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    subprocess.run([sys.executable, "rename.py", name], cwd=plugin, check=True, timeout=200)
    return plugin


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the template with the name `word-search`."""
    return copied(tmp_path_factory.mktemp("plugin"), "word-search")


@pytest.fixture(scope="module")
def installed(plugin: Path) -> dict[str, str]:
    """The environment of a process in which the copy is installed."""
    site = plugin.parent / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run(
        [*pip, "--disable-pip-version-check", "--target", site, plugin], check=True, timeout=280, capture_output=True
    )
    return {**os.environ, "PYTHONPATH": str(site)}


def test_nothing_of_the_templates_own_names_is_left(plugin: Path) -> None:
    files = [path for path in plugin.rglob("*") if path.is_file()]
    assert {str(path.relative_to(plugin)) for path in files} == {
        "README.md",
        "lightning_word_search/__init__.py",
        "lightning_word_search/py.typed",
        "lightning_word_search/word_search.py",
        "pyproject.toml",
        "tests/test_word_search.py",
    }
    assert not [path for path in files if "mytuner" in path.read_text(encoding="utf-8").lower()]


@pytest.mark.parametrize("name", ["Greedy", "two words", "2fast", "", "a--b", "../x"])
def test_a_name_that_a_package_cannot_have_is_refused(tmp_path: Path, name: str) -> None:
    shutil.copy(TEMPLATE / "rename.py", tmp_path)
    renamed = subprocess.run(
        [sys.executable, "rename.py", name], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    assert renamed.returncode == 1
    assert "cannot be a plugin's name; write lower-case words joined by hyphens" in renamed.stderr
    assert (tmp_path / "rename.py").exists()


@pytest.mark.slow
def test_the_copy_is_listed_and_found_sound(installed: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lightning_core", "plugins", "--check"]
    listed = subprocess.run(
        command, env=installed, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    assert listed.returncode == 0, listed.stderr
    rows = [line.split() for line in listed.stdout.splitlines()]
    assert [
        "algorithms",
        "word-search",
        "lightning-word-search",
        "0.1.0",
        "lightning_word_search:WordSearch",
        "ok",
    ] in rows


@pytest.mark.slow
def test_the_copy_passes_its_own_tests_and_the_suite_of_algorithms(plugin: Path, installed: dict[str, str]) -> None:
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        env=installed,
        cwd=plugin,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
    suite = [name for name in dir(AlgorithmSuite) if name.startswith("test_")]
    assert f"{3 + len(suite)} passed" in tested.stdout, "each test of the template and of the suite, none skipped"
