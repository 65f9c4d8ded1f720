"""Which model comes of a training, what is reported of it, and how one ends that is cancelled."""

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from lightning_tokens.learning.serving import RESOURCE
from lightning_verl.bridge import Bridge, Ending, Enough, Stopped
from lightning_verl.config import load_settings
from lightning_verl.training import Training

from lightning_core.algorithm import Algorithm
from lightning_core.budget import Budget
from lightning_core.store import InMemoryLightningStore
from lightning_core.types import LLM, NamedResources, ProxyLLM


class Served:
    """Takes the names under which the policy is measured."""

    name = "tiny"

    def __init__(self) -> None:
        self.names: list[str] = []

    def measure(self, model: str) -> NamedResources:
        self.names.append(model)
        return self.measured(model)

    def measured(self, model: str) -> NamedResources:
        return {RESOURCE: ProxyLLM(endpoint="http://127.0.0.1:1/v1", model=model)}

    async def resources_id(self, resources: NamedResources) -> str:
        return "rs-1"


class Measures:
    """Gives the number of the step as the reward."""

    def __init__(self) -> None:
        self.ending = Ending()

    async def test(self, resources: NamedResources, *, step: int) -> float:
        return float(step)

    async def validate(self, resources: NamedResources, *, step: int) -> dict[str, float]:
        return {"val/reward": float(step)}


class Told(Algorithm):
    """Remembers what is reported."""

    def __init__(self, *, is_spent: bool = False) -> None:
        self.set_store(InMemoryLightningStore())
        self.set_budget(cast(Budget, SimpleNamespace(refused="calls" if is_spent else None, is_time_over=False)))
        self.reports: list[tuple[dict[str, float | None], str | None]] = []

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None: ...

    def report(
        self, metrics: Mapping[str, float | None], *, step: int | None = None, best_resources: Any = None
    ) -> None:
        self.reports.append((dict(metrics), best_resources and best_resources[RESOURCE].model))


def training(start: str, *, has_test: bool = True) -> Any:
    """Return a training without verl, with toys in the place of its parts."""
    return Training(
        Told(),
        load_settings({"actor_rollout_ref.model.path": start}),
        n_samples={"train": 1, "val": 1, "test": int(has_test)},
        checkpoints=Path("/run"),
        trainer_cls=None,
        bridge=Bridge(asyncio.get_running_loop()),
        manager=cast(Any, Measures()),
        serving=cast(Any, Served()),
    )


SAVED = "/run/global_step_{}/actor/huggingface"


async def test_the_model_is_measured_before_and_after_under_the_names_of_what_it_is() -> None:
    part = training("owner/model")
    await part.begin(0)
    await part.validate(1)
    await part.save(2)
    await part.validate(2)
    await part.end(2)
    saved = SAVED.format(2)
    assert part.serving.names == ["owner/model", "tiny:step-1", saved, saved]
    assert part._algorithm.reports == [
        ({"test_reward_initial": 0.0}, None),
        ({}, saved),
        ({}, saved),
        ({"test_reward": 2.0}, None),
    ]
    start = part._algorithm.get_initial_resources()[RESOURCE]
    assert isinstance(start, LLM)
    assert start.model == "owner/model"


async def test_one_that_goes_on_from_a_checkpoint_is_not_measured_as_the_one_at_the_start() -> None:
    part = training("owner/model")
    await part.begin(4)
    await part.end(4)  # there was nothing left to learn
    assert part._algorithm.reports == [({}, SAVED.format(4)), ({"test_reward": 4.0}, None)]


@pytest.mark.parametrize("has_test", [False, True])
async def test_one_that_is_not_saved_has_a_name_of_its_own(has_test: bool) -> None:
    part = training("owner/model", has_test=has_test)
    await part.begin(0)
    await part.end(3)
    assert ({}, "tiny:step-3") in part._algorithm.reports
    assert (({"test_reward": 3.0}, None) in part._algorithm.reports) is has_test


async def test_a_model_in_a_folder_is_called_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    part = training("tiny")  # as the policy itself is called
    await part.begin(0)
    assert part.serving.names == [str(tmp_path / "tiny")]


async def test_the_newest_model_is_reported_where_nothing_can_be_measured_any_more() -> None:
    part = training("owner/model")
    await part.begin(0)
    await part.save(2)
    part.manager.ending.ask()
    with pytest.raises(Enough):
        await part.validate(2)
    with pytest.raises(Enough):
        await part.end(2)
    assert part._algorithm.reports[-1] == ({}, SAVED.format(2))


async def test_a_step_that_is_taken_again_after_a_kill_is_not_reported_again() -> None:
    part, told = training("owner/model"), []
    part._algorithm.report = lambda metrics, *, step=None: told.append(step)
    for steps in ((0,), (0, 1, 2), (0, 1, 2, 3), (2, 3, 4)):  # killed before a checkpoint, and after one
        part._reported = await part._algorithm.get_store().load_state("run/reported")
        for step in steps:
            await asyncio.to_thread(part.report, {"training/reward": 1.0}, step)
    assert told == [None, 1, 2, 3, 4]


class Trainer:
    """verl's, after a step."""

    def __init__(self, *, has_more_to_keep: bool) -> None:
        self.has_more_to_keep = has_more_to_keep

    def workers(self) -> list[Any]:
        return []


class Waiting(Training):
    """Waits for rollouts in its thread until it is to end, and then keeps what it has learned, which may fail."""

    def __init__(
        self,
        *,
        is_spent: bool,
        has_more_to_keep: bool = True,
        goes_wrong: Exception | None = None,
        end_seconds: float = 30,
    ) -> None:
        self.ending = Ending()
        super().__init__(
            Told(is_spent=is_spent),
            load_settings(),
            n_samples={},
            checkpoints=Path("/run"),
            trainer_cls=None,
            bridge=Bridge(asyncio.get_running_loop()),
            manager=cast(Any, SimpleNamespace(ending=self.ending)),
            serving=cast(Any, None),
            end_seconds=end_seconds,
        )
        self._trainer = Trainer(has_more_to_keep=has_more_to_keep)
        self._goes_wrong = goes_wrong
        self.waits, self.keeps = asyncio.Event(), asyncio.Event()
        self.may_save = threading.Event()
        self.did: list[str] = []

    def _work(self) -> None:
        try:
            self.bridge.call(self._say(self.waits))
            while not self.ending.is_asked:
                self.bridge.wait(60)
            raise Enough("the budget")
        except Enough:
            self.did.append("keeps")
            self.bridge.call(self._say(self.keeps))
            self.may_save.wait(60)
            if self._goes_wrong is not None:
                raise self._goes_wrong from None
            self.did.append("kept")
        except Stopped:
            self.did.append("stopped")

    async def _say(self, event: asyncio.Event) -> None:
        event.set()


async def cancelled(training: Waiting) -> "asyncio.Task[None]":
    task = asyncio.create_task(training.run())
    await training.waits.wait()
    task.cancel()
    return task


async def test_where_the_budget_is_used_up_what_was_learned_is_kept_first() -> None:
    training = Waiting(is_spent=True)
    training.may_save.set()
    with pytest.raises(asyncio.CancelledError):
        await (await cancelled(training))
    assert training.did == ["keeps", "kept"]


@pytest.mark.parametrize(("is_spent", "has_more_to_keep"), [(False, True), (True, False)])
async def test_an_interruption_keeps_nothing_nor_does_a_run_that_has_kept_all(
    is_spent: bool, has_more_to_keep: bool
) -> None:
    training = Waiting(is_spent=is_spent, has_more_to_keep=has_more_to_keep)
    with pytest.raises(asyncio.CancelledError):
        await (await cancelled(training))
    assert training.did == ["stopped"]


async def test_an_interruption_does_not_wait_for_what_is_being_kept() -> None:
    training = Waiting(is_spent=True, end_seconds=0.1)
    task = await cancelled(training)
    await training.keeps.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(30):  # what is kept takes 60
            await task
    assert training.did == ["keeps"]
    training.may_save.set()


async def test_what_goes_wrong_while_it_is_kept_is_raised() -> None:
    training = Waiting(is_spent=True, goes_wrong=OSError("the disk is full"))
    training.may_save.set()
    with pytest.raises(OSError, match="the disk is full"):
        await (await cancelled(training))
