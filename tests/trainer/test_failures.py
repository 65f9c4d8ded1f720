"""What `Trainer.fit` raises: the run's own failures, not reports of them."""

import traceback

import pytest

from lightning_core import Trainer, rollout
from lightning_core.algorithm import algo
from lightning_core.errors import AlgorithmError, NoRewards


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
