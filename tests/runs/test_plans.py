"""What an algorithm says that it will do."""

from dataclasses import dataclass
from typing import Any

from lightning_core.algorithm import Algorithm, Baseline
from lightning_core.runs.standing import expected_rollouts, plan_of
from lightning_core.types import Dataset


@dataclass
class Plan:
    rollouts: int


class Search(Algorithm):
    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Do nothing."""


class Planned(Search):
    def plan(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> Plan:
        return Plan(len(train_dataset or ()) * 10)


class OtherPlan(Search):
    def plan(self, *, horizon: int) -> Plan:
        return Plan(horizon)


def test_algorithm_that_plans_tells_how_many_rollouts_there_will_be() -> None:
    plan = plan_of(Planned(), [1, 2], None)
    assert plan == Plan(20)
    assert expected_rollouts(Planned(), plan, train_dataset=[1, 2], held_out=6) == 26


def test_algorithm_without_a_plan_is_one_of_which_nothing_is_known() -> None:
    for algorithm in (Search(), OtherPlan()):
        plan = plan_of(algorithm, [1, 2], None)
        assert plan is None
        assert expected_rollouts(algorithm, plan, train_dataset=[1, 2]) is None


def test_baseline_runs_each_sample_once_in_each_epoch() -> None:
    assert expected_rollouts(Baseline(n_epochs=3), None, train_dataset=[1, 2], val_dataset=[3], held_out=1) == 10
