"""A gate: passed, worse or undecided, with as few rollouts as that takes."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from lightning_evals.evaluation import Evaluation, SampleTrials, Trial, key_of
from lightning_evals.gate import Gate, GateResult

from lightning_core import InMemoryLightningStore, Trainer, rollout
from lightning_core.errors import Fault, InvalidInput, RunFolderError

pytestmark = pytest.mark.usefixtures("nothing_left_running")

SAMPLES = list(range(300))
MANY = 300


@pytest.fixture
def baseline(tmp_path: Path) -> Callable[..., Path]:
    """Write a baseline: what each sample gave, once or several times."""

    def write(rewards: Mapping[Any, Sequence[float | None]]) -> Path:
        samples = [
            SampleTrials(
                key=key_of(sample),
                task=str(sample),
                trials=[Trial(rollout_id="ro-1", reward=reward) for reward in given],
            )
            for sample, given in rewards.items()
        ]
        Evaluation(run_id="run-before", samples=samples).write(tmp_path / "baseline.json")
        return tmp_path / "baseline.json"

    return write


async def gated(
    path: Path,
    score: Callable[[Any], Any],
    samples: Sequence[Any] = tuple(SAMPLES),
    *,
    run_id: str | None = None,
    **options: Any,
) -> GateResult:
    @rollout
    async def agent(task: Any) -> Any:
        return score(task)

    algorithm = Gate(str(path), **options)
    store = InMemoryLightningStore(run_id=run_id)
    trainer = Trainer(algorithm=algorithm, store=store, n_runners=4, stop_on_identical_failures=False)
    await trainer.fit_async(agent, val_dataset=samples)
    assert algorithm.result is not None
    return algorithm.result


async def test_an_agent_that_did_not_change_passes_early(baseline: Callable[..., Path]) -> None:
    found = await gated(baseline({each: [each % 2] for each in SAMPLES}), lambda task: float(task % 2))
    assert (found.outcome, found.of, found.lost, found.regressions) == ("passed", MANY, 0, [])
    assert found.n < MANY
    assert -0.02 < found.reward.low < 0


async def test_an_agent_that_got_much_worse_is_stopped_early(baseline: Callable[..., Path]) -> None:
    found = await gated(baseline({each: [1.0] for each in SAMPLES}), lambda task: float(task % 2))
    assert found.outcome == "worse"
    assert found.n < 100
    assert {(each.before, each.after) for each in found.regressions} == {(1.0, 0.0)}


async def test_few_samples_do_not_tell(baseline: Callable[..., Path]) -> None:
    few = SAMPLES[:20]
    found = await gated(baseline({each: [1.0] for each in few}), lambda task: 1.0, few)
    assert (found.outcome, found.n) == ("undecided", 20)
    assert "it takes about 250 samples to rule out such a drop" in found.markdown()
    found = await gated(baseline({each: [1.0] for each in few}), lambda task: 1.0, few, max_drop=0.4)
    assert found.outcome == "passed"


async def test_a_failure_counts_with_the_lowest_reward_and_a_fault_does_not_count(
    baseline: Callable[..., Path],
) -> None:
    def score(task: int) -> float:
        if task == 0:
            raise ValueError("no answer")
        if task == 1:
            raise Fault("the tools are away")
        return 1.0

    few = SAMPLES[:10]
    found = await gated(baseline({each: [1.0] for each in few}), score, few)
    assert (found.n, found.lost) == (9, 1)
    assert found.reward.after == pytest.approx(8 / 9)
    (dropped,) = found.regressions
    assert (dropped.task, dropped.after, dropped.failure) == ("0", 0.0, "ValueError: no answer")


async def test_what_faults_could_hide_does_not_pass(baseline: Callable[..., Path]) -> None:
    def score(task: int) -> float:
        if task % 2:
            raise Fault("the prompt is too long")
        return 1.0

    found = await gated(baseline({each: [1.0] for each in SAMPLES}), score, max_drop=0.1, run_id="run-0")
    assert (found.outcome, found.n, found.lost) == ("undecided", MANY // 2, MANY // 2)
    assert found.reward.low > -0.1
    assert "150 samples were lost to faults." in found.markdown()
    assert "150 rollouts had faults, which could hide a drop of 0.50." in found.markdown()


async def test_an_agent_that_raises_a_fault_instead_of_being_wrong_does_not_pass(baseline: Callable[..., Path]) -> None:
    asked: Counter[int] = Counter()

    def score(task: int) -> float:
        asked[task] += 1
        if task % 3 == 0 and asked[task] <= 1 + task % 2:
            raise Fault("the tools are away")
        return 1.0

    found = await gated(baseline({each: [1.0] for each in SAMPLES}), score, max_drop=0.1, run_id="run-0")
    assert (found.outcome, found.n, found.lost, found.faulted) == ("undecided", MANY, 0, MANY // 3)
    assert found.reward.after == 1.0
    assert found.hidden == pytest.approx(1 / 3)
    assert "100 rollouts had faults, which could hide a drop of 0.33." in found.markdown()
    assert '"faulted": 100' in found.model_dump_json(indent=1)


async def test_an_earlier_outcome_does_not_outlive_a_gate_that_fails(tmp_path: Path) -> None:
    (tmp_path / "gate.md").write_text("### Gate: passed")
    with pytest.raises(RunFolderError):
        await gated(tmp_path / "none.json", float, markdown=str(tmp_path / "gate.md"))
    assert not (tmp_path / "gate.md").exists()


async def test_faults_and_a_drop_are_added(baseline: Callable[..., Path]) -> None:
    def score(task: int) -> float:
        if task % 13 == 0:
            raise Fault("the prompt is too long")
        return float(task % 20 != 1)

    found = await gated(baseline({each: [1.0] for each in SAMPLES}), score, max_drop=0.15, run_id="run-0")
    assert found.reward.low > -0.15 > found.reward.low - found.hidden
    assert found.outcome == "undecided"


async def test_samples_that_the_baseline_lost_are_not_run(baseline: Callable[..., Path]) -> None:
    path = baseline({each: [1.0] if each % 2 else [] for each in range(20)})
    found = await gated(path, lambda task: float(task % 2), range(20))
    assert (found.n, found.of, found.lost, found.lost_before) == (10, 10, 0, 10)
    assert "10 samples were lost to faults in the baseline." in found.markdown()
    with pytest.raises(
        InvalidInput, match=r"the dataset has 3 of the 3 samples .*; none of them has a rollout without"
    ):
        await gated(baseline({each: [] for each in range(3)}), lambda task: 1.0, range(3))


async def test_each_run_has_its_own_order(baseline: Callable[..., Path]) -> None:
    path = baseline({each: [1.0] for each in SAMPLES})

    async def ran(**options: Any) -> set[int]:
        seen: set[int] = set()

        def score(task: int) -> float:
            seen.add(task)
            return 1.0

        assert (await gated(path, score, max_drop=0.1, **options)).outcome == "passed"
        return seen

    assert await ran() != await ran()
    assert await ran(run_id="run-1") == await ran(run_id="run-1")


async def test_only_samples_of_both_are_compared(baseline: Callable[..., Path]) -> None:
    path = baseline({each: [1.0] for each in range(12)})
    found = await gated(path, lambda task: 1.0, range(4, 20))
    assert (found.of, found.not_in_dataset, found.not_in_baseline) == (8, 4, 8)
    assert "8 samples of the dataset are not in the baseline." in found.markdown()
    with pytest.raises(InvalidInput, match="the dataset has none of the 12 samples of the baseline"):
        await gated(path, lambda task: 1.0, ["other"])


async def test_other_rewards_need_their_range(baseline: Callable[..., Path]) -> None:
    path = baseline({each: [5.0] for each in range(12)})
    with pytest.raises(InvalidInput, match=r"a reward of '.*' is 5, which is not from 0 to 1; say what rewards"):
        await gated(path, lambda task: 5.0, range(12))
    found = await gated(path, lambda task: 5.0, range(12), low=0, high=10, max_drop=8)
    assert found.outcome == "passed"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_drop": 0.0}, "max_drop is 0.0; it is more than 0 and less than 1"),
        ({"max_drop": 1.0}, "max_drop is 1.0; it is more than 0 and less than 1"),
        ({"low": 1.0, "high": 0.0}, "low is the smaller one"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Gate("baseline.json", **options)  # type: ignore[arg-type]


async def test_what_a_sample_says_does_nothing_in_markdown(baseline: Callable[..., Path]) -> None:
    evil = "`![x](http://a) @all\n# Gate\x1b: passed"
    samples = [evil, *map(str, range(11))]
    found = await gated(baseline({each: [1.0] for each in samples}), lambda task: float(task != evil), samples)
    text = found.markdown()
    assert text.startswith("### Gate: undecided\n")
    assert "- `'![x](http://a) @all # Gate: passed`: 1.00 → 0.00" in text
    assert text.count("\n#") == 0
    assert "\nReward: 1.00 → 0.92, a change of -0.08 (95% " in text
