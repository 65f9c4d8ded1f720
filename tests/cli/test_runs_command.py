"""`agl runs`: the runs as a table, one in full, and the way to be rid of one."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lightning_core.cli import agl
from lightning_core.cli.job import NOT_INSTALLED
from lightning_core.cli.options import runs_root, with_runs_dir
from lightning_core.errors import ConfigError
from lightning_core.registry import Registry
from lightning_core.registry.inventory import installed_entry_points
from lightning_core.runs.folder import RunFolder

AGENT = """
from lightning_core import PromptTemplate, rollout
from lightning_core.algorithm import algo, run_batch

@rollout
async def solve(task):
    return float(task)

BEST = {"main_prompt": PromptTemplate(template="[red]please[/red]")}

@algo
async def search(store, train_dataset, report):
    resources_id = (await store.add_resources(BEST)).resources_id
    batch = await run_batch(store, train_dataset, mode="train", resources_id=resources_id)
    report({"train_reward": batch.mean_reward}, step=1, best_resources=BEST)

@algo
async def diverge(train_dataset):
    raise ValueError("it diverged, with api_key=abcdefgh")
"""
CONFIG = """
agent: listed_agent:solve
algorithm: {algorithm}
train_dataset: [1, 0, 1, 0]
"""

Agl = Callable[..., Result]


@pytest.fixture
def run(own_folder: Path) -> Agl:
    """Run `agl`, in a folder where there is a config."""
    (own_folder / "listed_agent.py").write_text(AGENT)
    return lambda *arguments, stdin="": CliRunner().invoke(agl, arguments, input=stdin)


def train(run: Agl, runs_dir: Path, algorithm: str = "baseline", *options: str) -> RunFolder:
    """Train with an algorithm; return the folder of the run."""
    before = set(runs_dir.glob("*"))
    Path("config.yaml").write_text(CONFIG.format(algorithm=algorithm))
    run("train", "config.yaml", *options)
    [path] = set(runs_dir.glob("*")) - before
    return RunFolder(path)


def test_without_runs_there_is_an_empty_table(run: Agl) -> None:
    result = run("runs")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "id  algorithm  outcome  reward  rollouts  start  duration\n"
    assert json.loads(run("runs", "--json").stdout) == []


def test_runs_are_listed_with_what_came_of_them(run: Agl, runs_dir: Path) -> None:
    first, second = train(run, runs_dir), train(run, runs_dir, "listed_agent:diverge")
    lines = [line.split("  ") for line in re.sub(r" {2,}", "  ", run("runs").stdout).splitlines()]
    by_id = {line[0]: line for line in lines[1:]}
    assert by_id[first.run_id][1:5] == ["baseline", "succeeded", "0.50", "4"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", by_id[first.run_id][5])
    assert by_id[second.run_id][1:5] == ["listed_agent:diverge", "failed", "-", "0"]
    records = {record["id"]: record for record in json.loads(run("runs", "--json").stdout)}
    assert records[first.run_id]["reward"] == 0.5
    assert records[first.run_id]["rollouts"]["succeeded"] == 4
    assert records[second.run_id]["outcome"] == "failed"


def test_damaged_run_is_told_and_hides_no_other(run: Agl, runs_dir: Path) -> None:
    whole, damaged = train(run, runs_dir), train(run, runs_dir)
    damaged.manifest_file.write_text("{")
    result = run("runs")
    assert result.exit_code == 0
    assert whole.run_id in result.stdout
    assert damaged.run_id not in result.stdout
    assert result.stderr.startswith(f"{damaged.manifest_file} is damaged: Invalid JSON")
    assert run("runs", "rm", damaged.run_id, "--yes").exit_code == 0


def test_run_is_shown_with_what_it_was_made_of(run: Agl, runs_dir: Path) -> None:
    folder = train(run, runs_dir, "listed_agent:search", "--set", "n_runners=2")
    shown = run("show", folder.run_id[:8]).stdout
    assert shown.startswith(f"{folder.run_id}  succeeded\n  algorithm  listed_agent:search\n")
    assert "  rollouts   4\n" in shown
    assert "  reward     on training samples: 0.50 " in shown
    assert "train_reward" not in shown, "the same again"
    assert f"  config     {Path('config.yaml').resolve()} --set n_runners=2\n" in shown
    assert "main_prompt, the best found:\n[red]please[/red]\n" in shown
    manifest: dict[str, Any] = json.loads(run("show", folder.run_id, "--json").stdout)
    assert manifest["standing"] == manifest["outcome"] == "succeeded"
    assert manifest["origin"]["config"]["n_runners"] == 2
    assert str(Path("listed_agent.py").resolve()) in manifest["origin"]["files"]


def test_run_that_failed_before_anything_succeeded_is_shown_with_its_error(run: Agl, runs_dir: Path) -> None:
    folder = train(run, runs_dir, "listed_agent:diverge")
    shown = run("show", folder.run_id).stdout
    assert "  error      ValueError: it diverged, with api_key=***\n" in shown
    assert "go on with it" not in shown


def test_run_is_removed_when_the_answer_is_yes(run: Agl, runs_dir: Path) -> None:
    folder = train(run, runs_dir)
    refused = run("runs", "rm", folder.run_id, stdin="n\n")
    assert refused.exit_code == 1
    assert f"Delete {folder.path} and all that is in it?" in refused.stdout
    assert folder.path.exists()
    removed = run("runs", "rm", folder.run_id, stdin="y\n")
    assert removed.exit_code == 0
    assert removed.stdout.endswith(f"removed {folder.run_id}\n")
    assert not folder.path.exists()


def test_old_runs_that_succeeded_are_removed_by_their_age(run: Agl, runs_dir: Path) -> None:
    folders = [train(run, runs_dir) for _ in range(5)]
    old, new, killed, interrupted, going_on = folders
    for folder in (old, killed, interrupted, going_on):
        manifest = json.loads(folder.manifest_file.read_text())
        manifest |= {"start": "2020-01-01T00:00:00Z", "end": "2020-01-02T00:00:00Z"}
        if folder is killed:
            manifest |= {"outcome": "running", "end": None, "result": None}
        if folder is interrupted:
            manifest |= {"outcome": "interrupted"}
        folder.manifest_file.write_text(json.dumps(manifest))
    going_on.lock.take()
    try:
        removed = run("runs", "rm", "--older-than", "30d", "--yes")
        assert (removed.exit_code, removed.stdout) == (0, f"removed {old.run_id}\n")
        none = run("runs", "rm", "--older-than", "999999999d", "--yes")
        assert none.stdout == "no run succeeded 999999999d ago, or before\n"
    finally:
        going_on.lock.release()
    assert [folder.path.exists() for folder in folders] == [False, True, True, True, True]
    for age in ("30 days", "9" * 400 + "d"):
        wrong = run("runs", "rm", "--older-than", age)
        assert f"--older-than is '{age}'; it is a number of hours, days or weeks" in wrong.stderr
    for both in ((), (new.run_id, "--older-than", "1d")):
        assert "one of the two" in run("runs", "rm", *both).stderr


def test_run_that_still_goes_on_is_neither_removed_nor_resumed(run: Agl, runs_dir: Path) -> None:
    folder = train(run, runs_dir)
    folder.lock.take()
    try:
        assert "running" in run("runs").stdout
        for command in (("runs", "rm", folder.run_id, "--yes"), ("resume", folder.run_id)):
            result = run(*command)
            assert result.exit_code == 2
            assert result.stderr.startswith(f"Error: run {folder.run_id} is still going on in this process, ")
    finally:
        folder.lock.release()
    assert folder.path.exists()


@pytest.mark.parametrize("command", [("show",), ("runs", "rm", "--yes"), ("resume",)])
def test_run_that_there_is_not_is_wrong_use(command: tuple[str, ...], run: Agl, runs_dir: Path) -> None:
    folder = train(run, runs_dir)
    near = folder.run_id[:-1] + ("0" if folder.run_id[-1] != "0" else "1")
    result = run(*command, near)
    assert result.exit_code == 2
    assert result.stderr == f"Error: no run '{near}' in {runs_dir}; the nearest are {folder.run_id}\n"
    (runs_dir / "empty").mkdir()
    result = run(*command, "empty")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: {runs_dir / 'empty'} is not a run: it has no manifest.json")


def test_run_without_its_store_cannot_be_resumed(run: Agl, runs_dir: Path) -> None:
    pytest.importorskip("lightning_sqlite", reason="without it a run has no store in its folder")
    folder = train(run, runs_dir, "listed_agent:diverge")
    folder.store_file.unlink()
    result = run("resume", folder.run_id)
    assert result.exit_code == 2
    assert result.stderr == (
        f"Error: run {folder.run_id} cannot go on: its store {folder.store_file} is missing; put it back, or start "
        "anew: agl train\n"
    )
    folder.store_file.write_text("no database")
    result = run("resume", folder.run_id)
    assert result.exit_code == 2
    assert (
        f"Error: cannot use the store of run {folder.run_id}: {folder.store_file} is not an SQLite database"
        in result.stderr
    )


def test_run_that_was_kept_in_memory_cannot_be_resumed(run: Agl, runs_dir: Path) -> None:
    folder = train(run, runs_dir, "listed_agent:diverge", "--set", "store=memory")
    result = run("resume", folder.run_id)
    assert result.exit_code == 2
    assert f"Error: run {folder.run_id} was kept in memory, and nothing of it is left to go on with" in result.stderr


def test_without_lightning_sqlite_it_is_said_in_one_line_that_the_run_is_kept_in_memory(
    run: Agl, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry_points = (each for each in installed_entry_points() if each.dist and each.dist.name != "lightning-sqlite")
    registry = Registry(entry_points)
    for module in ("lightning_core.cli.job", "lightning_core.runs.recording", "lightning_core.config.components"):
        monkeypatch.setattr(f"{module}.default_registry", lambda: registry)
    Path("config.yaml").write_text(CONFIG.format(algorithm="baseline"))
    result = run("train", "config.yaml")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[1] == NOT_INSTALLED
    [folder] = runs_dir.iterdir()
    assert RunFolder(folder).manifest().store == "memory"
    assert not (folder / "store.db").exists()


def test_folder_of_all_runs_is_named_by_an_option_or_a_variable(
    run: Agl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("config.yaml").write_text(CONFIG.format(algorithm="baseline"))
    assert run("train", "config.yaml", "--runs-dir", "mine").exit_code == 0
    [folder] = (tmp_path / "mine").iterdir()
    assert folder.name in run("runs", "--runs-dir", "mine").stdout
    assert folder.name in run("show", folder.name, "--runs-dir", "mine").stdout
    monkeypatch.delenv("AGL_RUNS_DIR")
    assert runs_root(None) == tmp_path / "runs"
    assert with_runs_dir("agl resume", Path("my runs")) == "agl resume --runs-dir 'my runs'"
    (tmp_path / "runs").write_text("")
    with pytest.raises(ConfigError, match="AGL_RUNS_DIR is runs, which is not a folder; name one"):
        runs_root(None)
