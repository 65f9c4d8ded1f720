"""`agl plugins`."""

import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from lightning_core.cli import agl
from lightning_core.registry import Registry, default_registry

plugins_command = importlib.import_module("lightning_core.cli.plugins")


@pytest.fixture
def somebodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes the command see one distribution, with the given entry points, and nothing else."""

    def install(entry_points: str) -> None:
        write_distribution(tmp_path, entry_points)
        [distribution] = importlib.metadata.distributions(path=[str(tmp_path)])
        registry = Registry(distribution.entry_points)
        monkeypatch.setattr(plugins_command, "default_registry", lambda: registry)

    return install


def write_distribution(folder: Path, entry_points: str) -> None:
    information = folder / "somebodys-0.1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys\nVersion: 0.1\n")
    (information / "entry_points.txt").write_text(entry_points)


def test_plugins_lists_every_component_in_plain_columns_when_not_on_a_terminal() -> None:
    result = CliRunner().invoke(agl, ["plugins"])
    assert result.exit_code == 0
    heading, *lines = result.stdout.splitlines()
    assert heading.split() == ["kind", "name", "distribution", "version", "object", "state"]
    assert len(lines) == len(default_registry().inventory())
    baseline = next(line.split() for line in lines if line.split()[:2] == ["algorithms", "baseline"])
    assert baseline[2] == "lightning-core"
    assert baseline[4:] == ["lightning_core.algorithm.baseline:Baseline", "ok"]


def test_plugins_as_json_has_the_same_components() -> None:
    result = CliRunner().invoke(agl, ["plugins", "--json"])
    records = json.loads(result.stdout)
    assert {"plugins", "train"} <= {record["name"] for record in records if record["kind"] == "commands"}
    keys = {"kind", "name", "distribution", "version", "object", "state", "problem"}
    assert all(set(record) == keys for record in records)
    assert {record["problem"] for record in records if record["state"] == "ok"} == {None}


def test_check_finds_everything_that_we_ship_sound() -> None:
    result = CliRunner().invoke(agl, ["plugins", "--check", "--json"])
    assert result.exit_code == 0, result.output
    assert {record["state"] for record in json.loads(result.stdout)} == {"ok"}


def test_check_tells_what_is_broken_and_fails(somebodys: Callable[..., None]) -> None:
    somebodys(f"[lightning_core.algorithms]\nabsent = not_there:A\nthere = {__name__}:write_distribution\n")
    result = CliRunner().invoke(agl, ["plugins", "--check", "--json"])
    assert result.exit_code == 1
    records = {record["name"]: record for record in json.loads(result.stdout)}
    assert {name: record["state"] for name, record in records.items()} == {"absent": "broken", "there": "ok"}
    beginning = "algorithm 'absent' of somebodys 0.1 (not_there:A) cannot be loaded: no module 'not_there'"
    assert records["absent"]["problem"].startswith(beginning)


def test_listing_imports_no_plugin_and_nothing_heavy(tmp_path: Path) -> None:
    write_distribution(tmp_path, "[lightning_core.algorithms]\nfancy = fancy_algorithm:Fancy\n")
    (tmp_path / "fancy_algorithm.py").write_text("class Fancy: ...\n")
    program = (
        "import sys\n"
        "from lightning_core.cli import agl\n"
        "agl(['plugins'], standalone_mode=False)\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert "fancy_algorithm:Fancy" in done.stdout
    unwanted = {"fancy_algorithm", "lightning_apo", "openai", "opentelemetry.sdk", "pydantic", "rich", "yaml"}
    assert not unwanted & set(done.stderr.split())
