"""An algorithm's reports: what is kept of them, and what hooks are told."""

import asyncio
from collections.abc import Mapping

import pytest

from lightning_core.errors import AlgorithmError
from lightning_core.plugins import Hooks
from lightning_core.runs import Progress
from lightning_core.types import LLM, PromptTemplate


class Steps:
    """Hooks that take a while."""

    def __init__(self) -> None:
        self.told: list[tuple[int, dict[str, float | None]]] = []
        self.go = asyncio.Event()
        self.go.set()

    async def lightning_step_end(self, step: int, metrics: Mapping[str, float | None]) -> None:
        await self.go.wait()
        self.told.append((step, dict(metrics)))


async def test_none_takes_the_value_of_a_metric_away_and_hooks_are_told() -> None:
    progress, steps = Progress(), Steps()
    async with progress.telling(Hooks([steps])):
        progress({"reward": 0.5, "gain": 0.25, "cost": 1.0}, step=1)
        progress({"reward": 0.0, "gain": None, "never": None}, step=2)
    assert progress.metrics == {"reward": 0.0, "cost": 1.0}
    assert steps.told[1] == (2, {"reward": 0.0, "gain": None, "never": None})


def test_newest_best_resources_are_kept_and_copied() -> None:
    progress = Progress()
    model = LLM(endpoint="http://localhost/v1", model="small", sampling_parameters={"temperature": 0.5})
    progress({}, best_resources={"main_prompt": PromptTemplate(template="a")})
    progress({}, best_resources={"main_llm": model})
    model.sampling_parameters["temperature"] = 1.0
    progress({"reward": 1.0})
    assert progress.best_resources == {
        "main_llm": LLM(endpoint="http://localhost/v1", model="small", sampling_parameters={"temperature": 0.5})
    }


def test_nothing_of_a_wrong_report_is_kept() -> None:
    progress = Progress()
    with pytest.raises(AlgorithmError, match="metric 'cost' is 'low'; report a number, or None"):
        progress({"reward": 1.0, "cost": "low"})  # type: ignore[dict-item]
    with pytest.raises(AlgorithmError, match="best resource 'main_prompt' is 'a'"):
        progress({"reward": 1.0}, best_resources={"main_prompt": "a"})  # type: ignore[dict-item]
    assert progress.metrics == {}
    assert progress.best_resources is None


async def test_hooks_are_told_of_every_step_in_order_by_the_end_of_the_block() -> None:
    progress, steps = Progress(), Steps()
    async with progress.telling(Hooks([steps])):
        progress({"reward": 0.1}, step=1)
        await asyncio.to_thread(progress, {"reward": 0.2}, step=2)
        progress({"reward": 0.3})
        progress({"reward": 0.4}, step=3)
    assert steps.told == [(1, {"reward": 0.1}), (2, {"reward": 0.2}), (3, {"reward": 0.4})]


@pytest.mark.parametrize("when", ["in the block", "while the hooks are told of the rest"])
async def test_cancellation_does_not_wait_for_hooks(when: str) -> None:
    progress, steps = Progress(), Steps()
    steps.go.clear()

    async def run() -> None:
        async with progress.telling(Hooks([steps])):
            progress({}, step=1)
            if when == "in the block":
                await asyncio.Event().wait()

    task = asyncio.create_task(run())
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps.told == []
    assert asyncio.all_tasks() == {asyncio.current_task()}
