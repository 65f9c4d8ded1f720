"""`agl plugins`."""

import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from lightning_core.cli import agl
from lightning_core.registry import Registry, default_registry

plugins_command = importlib.import_module("lightning_core.cli.plugins")


@pytest.fixture
def somebodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes the command see one distribution, with the given entry points, and nothing else."""

    def install(entry_points: str, *, requires: str = "lightning-core", blocked: Sequence[str] = ()) -> None:
        write_distribution(tmp_path, entry_points, requires=requires)
        [distribution] = importlib.metadata.distributions(path=[str(tmp_path)])
        registry = Registry(distribution.entry_points, blocked=blocked)
        monkeypatch.setattr(plugins_command, "default_registry", lambda: registry)

    return install


def write_distribution(folder: Path, entry_points: str, *, requires: str = "lightning-core") -> None:
    information = folder / "somebodys-0.1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: somebodys\nVersion: 0.1\nRequires-Dist: {requires}\n"
    )
    (information / "entry_points.txt").write_text(entry_points)


def a_function() -> None:
    """Something that is not a hook plugin, no command, and no class."""


class NeedsTooMuch:
    """A plugin whose class cannot be called without arguments."""

    def __init__(self, address: str) -> None:
        self.address = address

    def lightning_step_end(self, step: int) -> None:
        raise NotImplementedError


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
    assert {record["state"] for record in json.loads(result.stdout)} <= {"ok", "blocked"}


def test_check_tells_what_is_broken_and_fails(somebodys: Callable[..., None]) -> None:
    somebodys(
        f"[lightning_core.algorithms]\nabsent = not_there:A\nwrong = {__name__}:NeedsTooMuch\n"
        f"[lightning_core.adapters]\nsilent = {__name__}:NeedsTooMuch\n"
        f"[lightning_core.commands]\ntell = {__name__}:a_function\n"
        f"[lightning_core]\nmute = {__name__}:a_function\nneedy = {__name__}:NeedsTooMuch\n"
    )
    result = CliRunner().invoke(agl, ["plugins", "--check", "--json"])
    assert result.exit_code == 1
    records = {record["name"]: record for record in json.loads(result.stdout)}
    assert {record["state"] for record in records.values()} == {"broken"}
    beginnings = {
        "absent": "algorithm 'absent' of somebodys 0.1 (not_there:A) cannot be loaded: no module 'not_there'",
        "wrong": f"algorithm 'wrong' of somebodys 0.1 ({__name__}:NeedsTooMuch) is the class NeedsTooMuch; it has to",
        "silent": f"adapter 'silent' of somebodys 0.1 ({__name__}:NeedsTooMuch) is the class NeedsTooMuch; it has to",
        "tell": f"command 'tell' of somebodys 0.1 ({__name__}:a_function) is a function; it has to be a click command",
        "mute": f"hook plugin 'mute' of somebodys 0.1 ({__name__}:a_function) cannot be used: plugin 'function'",
        "needy": f"hook plugin 'needy' of somebodys 0.1 ({__name__}:NeedsTooMuch) cannot be used: ",
    }
    assert records.keys() == beginnings.keys()
    for name, beginning in beginnings.items():
        assert records[name]["problem"].startswith(beginning)


@pytest.mark.parametrize(("options", "status"), [([], 0), (["--check"], 1)])
def test_a_plugin_for_another_core_is_told_with_the_reason_on_stderr(
    somebodys: Callable[..., None], options: list[str], status: int
) -> None:
    somebodys("[lightning_core.algorithms]\nahead = not_there:A\n", requires="lightning-core>=99")
    result = CliRunner().invoke(agl, ["plugins", *options])
    assert result.exit_code == status
    assert result.stdout.splitlines()[1].split()[-1] == "incompatible"
    assert result.stderr.startswith("algorithm 'ahead' of somebodys 0.1 requires lightning-core>=99, but ")


def test_what_is_blocked_is_listed_and_is_no_reason_to_fail(somebodys: Callable[..., None]) -> None:
    somebodys("[lightning_core.algorithms]\nabsent = not_there:A\n", blocked=["absent"])
    result = CliRunner().invoke(agl, ["plugins", "--check"])
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split()[-1] == "blocked"
    assert "is blocked by 'absent' in AGL_PLUGINS_BLOCK" in result.stderr


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
