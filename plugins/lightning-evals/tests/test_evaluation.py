"""An evaluation: what passes, how sure that is, and what is kept of each trial."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from lightning_evals.evaluation import (
    FILE,
    Evaluate,
    Evaluation,
    SampleTrials,
    Trial,
    pass_at_k,
    pass_hat_k,
    summarise,
)

from lightning_core import Trainer, emit_message, rollout
from lightning_core.errors import Fault, InvalidInput, NoRewards, RunFolderError

pytestmark = pytest.mark.usefixtures("nothing_left_running")


def trial(reward: float | None = None, *, is_fault: bool = False, seconds: float | None = None) -> Trial:
    return Trial(rollout_id="ro-1", reward=reward, is_fault=is_fault, seconds=seconds)


def sample(*rewards: float | None, key: str = "a") -> SampleTrials:
    return SampleTrials(key=key, task=key, trials=[trial(reward) for reward in rewards])


# The estimators


def test_pass_at_1_of_humanevals_example_is_the_published_one() -> None:
    # github.com/openai/human-eval, README: its six example samples, of which three pass, give pass@1 of 0.5.
    assert pass_at_k(6, 3, 1) == pytest.approx(0.4999999999999999)


@pytest.mark.parametrize(("n", "passed"), [(n, passed) for n in (1, 2, 5, 9) for passed in range(n + 1)])
def test_the_estimators_are_the_shares_of_all_ways_to_draw(n: int, passed: int) -> None:
    outcomes = [True] * passed + [False] * (n - passed)
    for k in range(1, n + 1):
        draws = list(itertools.combinations(outcomes, k))
        assert pass_at_k(n, passed, k) == pytest.approx(sum(map(any, draws)) / len(draws))
        assert pass_hat_k(n, passed, k) == pytest.approx(sum(map(all, draws)) / len(draws))


@pytest.mark.parametrize(("n", "passed", "k"), [(200, 7, 10), (200, 150, 100), (100, 0, 10), (100, 95, 10)])
def test_pass_at_k_is_the_product_of_the_papers_program(n: int, passed: int, k: int) -> None:
    # Chen et al. 2021, figure 3: 1 - prod(1 - k / arange(n - c + 1, n + 1)).
    expected = 1.0
    if n - passed >= k:
        expected = 1 - math.prod(1 - k / i for i in range(n - passed + 1, n + 1))
    assert pass_at_k(n, passed, k) == pytest.approx(expected)


# The summary


def test_a_sample_counts_once_with_the_mean_of_its_trials() -> None:
    found = summarise([sample(1, 1, 1, 1), sample(0, 0, 0, 1)], repeat=4, pass_at=1.0)
    assert found["test_reward"] == pytest.approx((1 + 0.25) / 2)
    assert found["pass@1"] == pytest.approx((1 + 0.25) / 2)
    assert found["pass@2"] == pytest.approx((1 + 0.5) / 2)
    assert found["pass@4"] == 1.0
    assert found["pass^2"] == pytest.approx((1 + 0) / 2)
    assert found["pass^4"] == 0.5
    assert found["pass@4_low"] < 1


def test_a_failure_does_not_pass_and_a_fault_is_no_trial() -> None:
    failed = SampleTrials(key="a", task="a", trials=[trial(1), trial(None)])
    fault = SampleTrials(key="b", task="b", trials=[trial(1), trial(None, is_fault=True)])
    found = summarise([failed, fault], repeat=2, pass_at=1.0)
    assert found["test_reward"] == 1.0
    assert found["pass@1"] == pytest.approx((0.5 + 1) / 2)
    assert found["pass^2"] == 0.0  # the sample with the fault has one trial only


def test_graded_rewards_pass_from_a_threshold_on() -> None:
    samples = [sample(0.7), sample(0.1 + 0.2)]
    assert summarise(samples, repeat=1, pass_at=0.5)["pass@1"] == 0.5
    assert summarise(samples, repeat=1, pass_at=0.3)["pass@1"] == 1.0


def test_time_has_a_mean_and_its_95th_percentile() -> None:
    samples = [SampleTrials(key="a", task="a", trials=[trial(1, seconds=second) for second in range(101)])]
    found = summarise(samples, repeat=101, pass_at=1.0)
    assert found["rollout_seconds"] == 50
    assert found["rollout_seconds_p95"] == pytest.approx(95)
    assert "rollout_cost_usd" not in found


def test_seconds_are_not_taken_to_end_at_one() -> None:
    samples = [SampleTrials(key=key, task=key, trials=[trial(1, seconds=float(key))]) for key in ("0", "1", "1")]
    found = summarise(samples, repeat=1, pass_at=1.0)
    # scipy.stats.t.interval on 0, 1, 1 is -0.767551 to 2.100884.
    assert found["rollout_seconds_high"] == pytest.approx(2.100884, abs=1e-6)
    assert found["rollout_seconds_low"] == 0.0


# The algorithm


@rollout
async def agent(task: Any) -> float | None:
    emit_message("working")
    if task == "fails":
        raise ValueError("no answer")
    if task == "fault":
        raise Fault("the tools are away")
    return None if task == "silent" else float(task)


async def evaluated(samples: Sequence[Any], *, run_dir: Path, **options: Any) -> Evaluation:
    algorithm = Evaluate(**options)
    trainer = Trainer(
        algorithm=algorithm, n_runners=2, store="memory", run_dir=run_dir, stop_on_identical_failures=False
    )
    result = await trainer.fit_async(agent, val_dataset=samples)
    assert algorithm.evaluation is not None
    assert result.folder is not None
    assert Evaluation.read(result.folder / FILE) == algorithm.evaluation
    return algorithm.evaluation


async def test_each_trial_is_kept_with_what_came_of_it(tmp_path: Path) -> None:
    found = await evaluated([1, "fails", "fault", "silent"], run_dir=tmp_path, repeat=2)
    right, fails, fault, silent = found.samples
    assert [(each.reward, each.failure, each.is_fault) for each in right.trials] == [(1.0, None, False)] * 2
    assert [(each.failure, each.is_fault) for each in fails.trials] == [("ValueError: no answer", False)] * 2
    assert all(each.is_fault and "the tools are away" in str(each.failure) for each in fault.trials)
    assert all("gave no reward" in str(each.failure) and not each.is_fault for each in silent.trials)
    assert right.trials[0].seconds is not None
    assert len({each.rollout_id for sample in found.samples for each in sample.trials}) == 8


async def test_a_task_is_kept_without_secrets_since_the_file_is_committed() -> None:
    samples = ["log in with password=swordfish", {"url": "http://h/", "api_key": "swordfish"}, "count to 3"]
    algorithm = Evaluate()
    await Trainer(algorithm=algorithm).fit_async(rollout(lambda task: 1.0), val_dataset=samples)
    assert algorithm.evaluation is not None
    tasks = ["log in with password=***", '{"url": "http://h/", "api_key": "***"}', "count to 3"]
    assert [each.task for each in algorithm.evaluation.samples] == tasks


async def test_the_first_samples_are_run_and_equal_ones_have_one_key(tmp_path: Path) -> None:
    kept = await evaluated([1, 0, 1, "fails"], run_dir=tmp_path, max_samples=3)
    assert [each.task for each in kept.samples] == ["1", "0", "1"]
    assert kept.samples[0].key == kept.samples[2].key != kept.samples[1].key


async def test_without_a_reward_there_is_nothing_to_tell() -> None:
    with pytest.raises(NoRewards, match="the evaluation: none of 1 rollouts gave a reward; the first: ValueError"):
        await Trainer(algorithm=Evaluate()).fit_async(agent, val_dataset=["fails"])
    with pytest.raises(InvalidInput, match="there is nothing to evaluate on; give samples"):
        await Trainer(algorithm=Evaluate()).fit_async(agent, val_dataset=[])


def test_what_is_no_evaluation_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"run_id": "run-1"}')
    with pytest.raises(RunFolderError, match=r"other\.json is not an evaluation: samples: Field required"):
        Evaluation.read(tmp_path / "other.json")
    with pytest.raises(RunFolderError, match="cannot read an evaluation from"):
        Evaluation.read(tmp_path / "none.json")
