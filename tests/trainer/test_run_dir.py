"""`Trainer(run_dir=...)`: a program's runs are kept in folders, too."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace

from lightning_core import InMemoryLightningStore, PromptTemplate, Trainer, rollout
from lightning_core.algorithm import Algorithm
from lightning_core.errors import NoRewards, RunFolderError, StoreError
from lightning_core.registry import default_registry
from lightning_core.runs import RunFolder
from lightning_core.testing.store.base import present
from lightning_core.types import Dataset, NamedResources

PROMPT: NamedResources = {"main_prompt": PromptTemplate(template="x")}


@rollout
async def solve(task: float) -> float:
    return task


class Steps(Algorithm):
    """Reports two steps, and raises after the first one the first time."""

    fails = True

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        self.report({"reward": 0.5}, step=1, best_resources=PROMPT)
        if self.fails:
            self.fails = False
            raise RuntimeError("no such host")
        self.report({"loss": 0.1}, step=2)


def test_nothing_is_written_down_unless_a_folder_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = Trainer(algorithm="baseline")
    trainer.fit(solve, [1.0])
    assert trainer.recording is None
    assert list(tmp_path.iterdir()) == []


def test_each_run_has_a_folder_of_its_own(tmp_path: Path) -> None:
    trainer = Trainer(algorithm="baseline", initial_resources=PROMPT, run_dir=tmp_path / "runs")
    results = [trainer.fit(solve, [1.0, 0.0]) for _ in range(2)]
    folders = {folder.name: RunFolder(folder) for folder in (tmp_path / "runs").iterdir()}
    assert folders.keys() == {result.run_id for result in results}
    for folder in folders.values():
        manifest = folder.manifest()
        assert (manifest.outcome, manifest.algorithm) == ("succeeded", "Baseline")
        assert present(manifest.result).metrics == {"train_reward": 0.5}
        assert manifest.origin.config_file is None
        assert str(Path(__file__)) in manifest.origin.files
        assert json.loads(folder.best_file.read_text())["main_prompt"]["template"] == "x"
        assert folder.lock.owner() is None


def test_store_that_is_given_is_used_and_its_runs_name_the_folders(tmp_path: Path) -> None:
    store = InMemoryLightningStore(run_id="mine")
    trainer = Trainer(algorithm="baseline", store=store, run_dir=tmp_path)
    assert [trainer.fit(solve, [1.0]).run_id for _ in range(2)] == ["mine", "mine-2"]
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["mine", "mine-2"]
    assert RunFolder(tmp_path / "mine").manifest().store == "memory"
    with pytest.raises(RunFolderError, match="run mine has ended; take another run_id, or remove it: agl runs rm mine"):
        Trainer(algorithm="baseline", store=store, run_dir=tmp_path).fit(solve, [1.0])


def test_a_run_that_failed_goes_on_with_what_was_reported_before(tmp_path: Path) -> None:
    pytest.importorskip("lightning_sqlite", reason="a run goes on from its store")
    algorithm = Steps()
    failed = Trainer(algorithm=algorithm, run_dir=tmp_path)
    with pytest.raises(RuntimeError, match="no such host"):
        failed.fit(solve)
    asyncio.run(failed.store.aclose())
    [path] = tmp_path.iterdir()
    folder = RunFolder(path)
    assert (folder.manifest().outcome, folder.manifest().error) == ("failed", "RuntimeError: no such host")
    result = Trainer(algorithm=algorithm, run_dir=folder).fit(solve)
    assert result.run_id == folder.run_id
    assert result.metrics == {"reward": 0.5, "loss": 0.1}
    assert result.best_resources == PROMPT
    assert folder.manifest().outcome == "succeeded"
    assert len(folder.metrics_file.read_text().splitlines()) == 2


def test_a_run_in_which_every_rollout_failed_runs_all_of_them_again(tmp_path: Path) -> None:
    pytest.importorskip("lightning_sqlite", reason="a run goes on from its store")
    is_down = True

    @rollout
    async def agent(task: int) -> float:
        called = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.usage.input_tokens": 100}
        with trace.get_tracer("mine").start_as_current_span("chat m", attributes=called):
            if is_down:
                raise ConnectionError("the model server is down")
            return 1.0

    failed = Trainer(algorithm="baseline", n_runners=2, run_dir=tmp_path)
    with pytest.raises(NoRewards, match="have all failed for the same reason"):
        failed.fit(agent, list(range(20)))
    asyncio.run(failed.store.aclose())
    is_down = False
    [path] = tmp_path.iterdir()
    result = Trainer(algorithm="baseline", run_dir=RunFolder(path)).fit(agent, list(range(20)))
    assert (result.rollouts.succeeded, result.rollouts.failed) == (20, 0)
    before = present(failed.result).usage.agent.input_tokens or 0
    assert before > 0
    assert result.usage.agent.input_tokens == before + 2000  # what the deleted ones used was paid


def test_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"is not a run: it has no manifest\.json"):
        Trainer(algorithm="baseline", run_dir=RunFolder(tmp_path / "gone")).fit(solve, [1.0])
    assert not (tmp_path / "gone").exists()


def test_store_that_cannot_be_made_leaves_no_folder(tmp_path: Path) -> None:
    def broken(path: object = None, run_id: str | None = None) -> InMemoryLightningStore:
        raise StoreError("no room left")

    with (
        default_registry().register("stores", "sqlite", broken),
        pytest.raises(RunFolderError, match=r"cannot use the store of run run-\w+: no room left"),
    ):
        Trainer(algorithm="baseline", run_dir=tmp_path).fit(solve, [1.0])
    assert list(tmp_path.iterdir()) == []
