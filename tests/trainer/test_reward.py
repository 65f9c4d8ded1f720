"""Agents that know nothing of rewards, and trying one out."""

from typing import Any

import pytest

from lightning_core import Trainer, rollout
from lightning_core.agent import Grader
from lightning_core.algorithm import Algorithm, Baseline
from lightning_core.errors import InvalidAgent, InvalidComponent, LightningError
from lightning_core.runner import LitAgentRunner
from lightning_core.runner.base import Runner
from lightning_core.tracer import OtelTracer
from lightning_core.types import Dataset


@rollout
async def answer(task: str) -> str:
    return task.upper()


def is_loud(result: str) -> float:
    return float(result.isupper())


@pytest.mark.parametrize(
    "reward", [is_loud, f"{__name__}:is_loud", Grader(is_loud)], ids=["function", "path", "grader"]
)
def test_grader_scores_an_agent_that_knows_nothing_of_rewards(reward: Any) -> None:
    trainer = Trainer(algorithm="baseline", reward=reward, n_runners=2)

    assert trainer.fit(answer, ["a", "b", "1"]).metrics == {"train_reward": pytest.approx(2 / 3)}


def test_runner_may_have_a_grader_of_its_own() -> None:
    trainer = Trainer(algorithm="baseline", runner={"name": "agent", "reward": f"{__name__}:is_loud"})

    assert trainer.fit(answer, ["a"]).metrics == {"train_reward": 1.0}


class OwnRunner(LitAgentRunner):
    """Takes no grader."""

    def __init__(self, tracer: OtelTracer) -> None:
        super().__init__(tracer)


@pytest.mark.parametrize(
    "runner",
    [OwnRunner, LitAgentRunner(OtelTracer()), {"name": "agent", "reward": f"{__name__}:is_loud"}],
    ids=["takes none", "ready without", "another one"],
)
def test_grader_that_the_runner_would_not_use_is_refused(runner: Runner | type[Runner] | dict[str, str]) -> None:
    with pytest.raises(InvalidComponent, match=r"reward is grader is_loud, but the runner, a .*; say it in one place"):
        Trainer(algorithm="baseline", runner=runner, reward=is_loud)


# Trying an agent out


@rollout
async def echo(task: float) -> float:
    return task


def test_dev_measures_with_baseline_where_there_is_no_algorithm() -> None:
    trainer = Trainer()

    assert trainer.dev(echo, [1.0], val_dataset=[0.5]).metrics == {"train_reward": 1.0, "val_reward": 0.5}
    assert trainer.algorithm is None


def test_dev_takes_a_fast_algorithm_and_no_other() -> None:
    class Slow(Algorithm):
        async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
            raise AssertionError

    assert Trainer(algorithm=Baseline(n_epochs=2)).dev(echo, [1.0]).rollouts.succeeded == 2
    with pytest.raises(InvalidComponent, match="dev takes a FastAlgorithm, and Slow is not one; call fit"):
        Trainer(algorithm=Slow()).dev(echo, [1.0])


async def test_dev_has_the_limits_of_fit() -> None:
    with pytest.raises(LightningError, match="in a running event loop"):
        Trainer().dev(echo, [1.0])
    with pytest.raises(InvalidAgent, match="is not an agent"):
        await Trainer(algorithm="baseline").fit_async(print)  # type: ignore[arg-type]
