"""What `Trainer.fit` raises: the run's own failures, not reports of them."""

import asyncio
import traceback

import pytest

from lightning_core import LightningStore, Trainer, rollout
from lightning_core.algorithm import algo, run_batch
from lightning_core.errors import AlgorithmError, NoRewards
from lightning_core.execution import ExecutionError
from lightning_core.runner import LitAgentRunner


class SearchFailed(Exception):
    """An algorithm's own exception, with facts of its own."""

    def __init__(self, step: int) -> None:
        super().__init__(f"step {step} diverged")
        self.step = step


@rollout
async def solve(task: float) -> float:
    return task


@pytest.mark.parametrize("is_async", [True, False])
def test_what_the_algorithm_raised_is_raised_with_its_traceback(is_async: bool) -> None:
    failure = SearchFailed(3)

    def diverge() -> None:
        raise failure

    @algo
    async def search() -> None:
        diverge()

    @algo
    def search_in_a_thread() -> None:
        diverge()

    with pytest.raises(SearchFailed) as raised:
        Trainer(algorithm=search if is_async else search_in_a_thread).fit(solve)
    assert raised.value is failure
    assert [frame.name for frame in traceback.extract_tb(raised.tb)][-2:] == [
        "search" if is_async else "search_in_a_thread",
        "diverge",
    ]


def test_run_in_which_the_agent_gives_no_reward_fails_and_says_how_to() -> None:
    @rollout
    async def agent(task: int) -> None:
        return None

    trainer = Trainer(algorithm="baseline")
    with pytest.raises(NoRewards, match=r"^epoch 1: none of 2 .*: the agent gave no reward: return a number, or call"):
        trainer.fit(agent, [1], val_dataset=[2])
    assert trainer.result is not None
    assert (trainer.result.status, trainer.result.rollouts.succeeded) == ("failed", 2)


def test_test_samples_without_any_reward_are_a_failure_too() -> None:
    @rollout
    async def agent(task: float) -> float:
        if task < 1:
            raise ValueError("too hard")
        return task

    with pytest.raises(NoRewards, match=r"^the test on held-out samples: none of 1 rollouts gave a reward; the first:"):
        Trainer(algorithm="baseline").fit(agent, [1.0], test_dataset=[0.0])


class BrokenRunner(LitAgentRunner):
    """Loses its store at once."""

    async def iter(self) -> None:
        raise ConnectionError("the store is gone")


def test_runner_that_cannot_go_on_ends_the_run() -> None:
    ended: list[str] = []

    @algo
    async def waits(store: LightningStore) -> None:
        try:
            await run_batch(store, [1.0], mode="train")
        except asyncio.CancelledError:
            ended.append("algorithm")
            raise

    with pytest.raises(ConnectionError, match="the store is gone"):
        Trainer(algorithm=waits, runner=BrokenRunner, n_runners=2).fit(solve)
    assert ended == ["algorithm"]


def test_more_work_than_the_runners_may_do_is_an_error_and_no_hang() -> None:
    with pytest.raises(ExecutionError, match="all 2 runners have reached their max_rollouts"):
        Trainer(algorithm="baseline", n_runners=2, max_rollouts=1).fit(solve, [1.0] * 3)


def test_algorithm_that_cancels_itself_is_an_error_and_no_interruption() -> None:
    @algo
    async def cancels_itself() -> None:
        asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)  # type: ignore[union-attr]
        await asyncio.Event().wait()

    with pytest.raises(ExecutionError, match="algorithm was cancelled from inside"):
        Trainer(algorithm=cancels_itself).fit(solve)


def test_trainer_can_be_used_again_after_a_failure() -> None:
    trainer = Trainer(algorithm="baseline")
    with pytest.raises(AlgorithmError):
        trainer.fit(solve)
    assert trainer.fit(solve, [1.0]).metrics == {"train_reward": 1.0}


async def test_keys_of_the_models_are_in_no_cause() -> None:
    @rollout
    async def leaks(task: str) -> float:
        raise ValueError("401: velvet-anchor-64 is wrong")

    params = {"model": "openai/large", "api_base": "http://127.0.0.1:9/v1", "api_key": "velvet-anchor-64"}
    proxy = {"model_list": [{"model_name": "large", "litellm_params": params}]}

    with pytest.raises(NoRewards, match=r"ValueError: 401: \*\*\* is wrong"):
        await Trainer(algorithm="baseline", llm_proxy=proxy).fit_async(leaks, ["task"])
