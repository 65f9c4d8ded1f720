"""How a run stands while it goes on."""

import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from lightning_core.adapter.usage import Usage
from lightning_core.algorithm.estimates import Estimate, estimate, without_interval
from lightning_core.runs.metrics import merged
from lightning_core.runs.result import BudgetUse, Failure, RolloutCounts, group_failures, usage_of_attempt
from lightning_core.types import Attempt, AttemptedRollout, Rollout, RolloutMode, Span, sample_key

RECENT_REWARDS = 1000
"""How many of the newest rewards the running mean is over."""

RECENT_FAILURES = 1000
"""How many of the newest failed rollouts are kept, to say why they failed."""

MIN_SHARED = 0.5
"""A version of the resources is compared with the best where they share so much of the samples of the best."""

MIN_ENDED = 5
"""Nothing is said of how fast a run is, or how long it will take, before so many rollouts have ended."""

_MODES: tuple[RolloutMode | None, ...] = ("val", "train", None, "test")
"""By what the best so far is chosen: the first of these that has rewards."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How a run stands at one moment."""

    run_id: str = ""
    elapsed_seconds: float = 0.0
    remaining_seconds: float | None = None
    """About how long it goes on; None where it is not known how many rollouts there will be, and before five ended."""
    expected: int | None = None
    """How many rollouts there will be, at most."""
    done: int = 0
    """Rollouts that succeeded."""
    failed: int = 0
    running: int = 0
    retried: int = 0
    """Rollouts that needed more than one attempt."""
    unrewarded: int = 0
    """Rollouts that succeeded without a reward."""
    reward: Estimate | None = None
    """The mean of the newest 1000 rewards, whatever their resources."""
    best: Estimate | None = None
    """The mean reward of the best version of the resources so far, see `Standing.snapshot`. Each sample counts once. As
    these samples chose it, there is no interval where others were tried."""
    first: Estimate | None = None
    """The mean reward of the version that was tried first, on the same samples where there are such."""
    best_resources_id: str | None = None
    versions: int = 0
    """How many versions of the resources were tried, on samples of the same kind, if not always on the same."""
    usage: Usage = field(default_factory=Usage)
    """What the agent asked of models; calls of the algorithm itself are not known here."""
    step: int = 0
    """The newest step that ended; 0 before the first."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The newest value of each metric that was reported with a step."""
    rollouts_per_second: float | None = None
    """How many have ended in a second; None before five have, and after the end of the run."""
    budget: BudgetUse | None = None
    """What the run may use, and has used; None without a budget."""

    def record(self) -> dict[str, Any]:
        """Return it as JSON has it, without what goes with a step."""
        kept = {name: value for name, value in asdict(self).items() if name not in _OF_STEP}
        return {
            name: round(value, 3) if name in _TIMES and value is not None else value for name, value in kept.items()
        }


_OF_STEP = frozenset(("run_id", "step", "metrics", "rollouts_per_second", "budget"))
_TIMES = ("elapsed_seconds", "remaining_seconds")


class Standing:
    """Counts what the hooks of a run tell. May be asked from any thread.

    Args:
        clock: Seconds, from any point in time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.budget: Callable[[], BudgetUse | None] = lambda: None
        """Tells what the run has used of its budget."""
        self._reset()

    def _reset(self) -> None:
        self._began = self._clock()
        self._ended: float | None = None
        self._run_id = ""
        self.expected_rollouts: int | None = None
        """How many rollouts the run will have at most, where that is known."""
        self._kept = RolloutCounts()
        self._done = self._failed = self._retried = self._unrewarded = 0
        self._running: dict[str, str] = {}
        """By worker, the attempt that it runs: a runner takes the next rollout when it is done with one."""
        self._recent: deque[float] = deque(maxlen=RECENT_REWARDS)
        self._rewards: dict[RolloutMode | None, dict[str | None, _Rewards]] = {}
        self._failures: deque[Rollout] = deque(maxlen=RECENT_FAILURES)
        self._usage = Usage()
        self._step = 0
        self._metrics: dict[str, float] = {}

    @property
    def elapsed_seconds(self) -> float:
        """Since the start of the run, and until its end."""
        with self._lock:
            return self._elapsed()

    def begin(self, run_id: str, kept: RolloutCounts | None = None) -> None:
        """Start the clock; after another run, from nothing.

        Args:
            run_id: The run.
            kept: What had ended before, in a run that is taken up again. It counts, and tells nothing of how fast
                the rest will be.
        """
        with self._lock:
            if self._ended is not None:
                self._reset()
            self._run_id, self._began = run_id, self._clock()
            self._kept = RolloutCounts() if kept is None else kept

    def take_over(self, usage: Usage, rewards: Iterable[tuple[Rollout, float]]) -> None:
        """Record what a run that is taken up again has from before: what its agent used, and its rewards."""
        with self._lock:
            self._usage += usage
            for rollout, reward in rewards:
                self._add_reward(rollout, reward)

    def end(self) -> None:
        """Stop the clock; nothing runs any more."""
        with self._lock:
            self._ended = self._clock() if self._ended is None else self._ended
            self._running.clear()

    def attempt_began(self, attempt: Attempt) -> None:
        """Record that a runner has begun an attempt."""
        with self._lock:
            self._running[attempt.worker_id or attempt.attempt_id] = attempt.attempt_id
            self._retried += attempt.sequence_id == 2  # further ones are of the same rollout

    def attempt_ended(self, rollout: Rollout, attempt: Attempt, reward: float | None, spans: Sequence[Span]) -> Usage:
        """Record an attempt's end, and return what it used. One that was given up counts only as use."""
        usage = usage_of_attempt(attempt, spans)
        with self._lock:
            worker = attempt.worker_id or attempt.attempt_id
            if self._running.get(worker) == attempt.attempt_id:
                del self._running[worker]
            self._usage += usage
            if isinstance(rollout, AttemptedRollout) and rollout.attempt.attempt_id != attempt.attempt_id:
                return usage
            has_succeeded = rollout.status == "succeeded" and attempt.status == "succeeded"
            self._done += has_succeeded
            if rollout.status == "failed":
                self._failed += 1
                self._failures.append(rollout)
            self._unrewarded += has_succeeded and reward is None
            if has_succeeded and reward is not None:
                self._add_reward(rollout, reward)
        return usage

    def _add_reward(self, rollout: Rollout, reward: float) -> None:
        self._recent.append(reward)
        versions = self._rewards.setdefault(rollout.mode, {})
        versions.setdefault(rollout.resources_id, _Rewards()).add(sample_key(rollout.input), reward)

    def step_ended(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Record what the algorithm reports."""
        with self._lock:
            self._step = step
            self._metrics = merged(self._metrics, metrics)

    def failures(self) -> list[Failure]:
        """Return why the newest 1000 rollouts that failed did, the most frequent cause first."""
        with self._lock:
            rollouts = list(self._failures)
        return group_failures(rollouts)

    def snapshot(self) -> Snapshot:
        """Return how it stands now.

        The best version is found by going through all of them in the order in which they were tried, with samples of
        one kind: one that does better than the best so far, on the samples that both were tried on, takes its place.
        One that shares less than half of its samples is not compared with it. Where none could be compared with
        another, there is no best.
        """
        budget = self.budget()
        with self._lock:
            elapsed = self._elapsed()
            versions = next((found for mode in _MODES if (found := self._rewards.get(mode))), {})
            best_id, best, first = _best(versions)
            return Snapshot(
                run_id=self._run_id,
                elapsed_seconds=elapsed,
                remaining_seconds=self._remaining(elapsed),
                expected=self.expected_rollouts,
                done=self._kept.succeeded + self._done,
                failed=self._kept.failed + self._failed,
                running=len(self._running),
                retried=self._kept.retried + self._retried,
                unrewarded=self._kept.unrewarded + self._unrewarded,
                reward=estimate(self._recent),
                best=best,
                first=first,
                best_resources_id=best_id,
                versions=len(versions),
                usage=self._usage,
                step=self._step,
                metrics=self._metrics,
                rollouts_per_second=self._rate(elapsed),
                budget=budget,
            )

    def _elapsed(self) -> float:
        return (self._clock() if self._ended is None else self._ended) - self._began

    def _remaining(self, elapsed: float) -> float | None:
        ended = self._done + self._failed
        if self.expected_rollouts is None or self._ended is not None or ended < MIN_ENDED:
            return None
        left = self.expected_rollouts - ended - self._kept.succeeded - self._kept.failed
        return elapsed / ended * left if left > 0 else None

    def _rate(self, elapsed: float) -> float | None:
        ended = self._done + self._failed
        return None if self._ended is not None or ended < MIN_ENDED or elapsed <= 0 else ended / elapsed


class Onlooker:
    """Hooks that know how a run stands.

    Args:
        standing: How it stands; None for a new one.
    """

    stays_with_algorithm = True
    """It is told here of rollouts of runner processes, and is not sent to them."""

    def __init__(self, standing: Standing | None = None) -> None:
        self.standing = Standing() if standing is None else standing

    def lightning_run_start(self, run_id: str, kept: RolloutCounts) -> Awaitable[None] | None:
        """Start the clock."""
        self.standing.begin(run_id, kept)
        return None

    def lightning_rollout_start(self, attempt: Attempt) -> None:
        """Count what runs."""
        self.standing.attempt_began(attempt)

    def lightning_rollout_end(
        self, rollout: Rollout, attempt: Attempt, reward: float | None, spans: Sequence[Span]
    ) -> None:
        """Count what ended."""
        usage = self.standing.attempt_ended(rollout, attempt, reward, spans)
        self._attempt_ended(rollout, attempt, reward, usage)

    def lightning_step_end(self, step: int, metrics: Mapping[str, float | None]) -> Awaitable[None] | None:
        """Take over what the algorithm reports."""
        self.standing.step_ended(step, metrics)
        self._step_ended(step, metrics)
        return None

    def lightning_run_end(self, run_id: str, status: str) -> Awaitable[None] | None:
        """Stop the clock."""
        self.standing.end()
        return None

    def _attempt_ended(self, rollout: Rollout, attempt: Attempt, reward: float | None, usage: Usage) -> None: ...

    def _step_ended(self, step: int, metrics: Mapping[str, float | None]) -> None: ...


class _Rewards:
    """The rewards of one version of the resources."""

    def __init__(self) -> None:
        self.means: dict[int, float] = {}
        """By sample: it may have been run several times, which makes it no other one."""
        self._counts: Counter[int] = Counter()

    def add(self, sample: str, reward: float) -> None:
        key = hash(sample)  # samples may be long
        self._counts[key] += 1
        before = self.means.get(key, 0.0)
        self.means[key] = before + (reward - before) / self._counts[key]

    def on(self, samples: Iterable[int]) -> Estimate | None:
        """Return the mean reward on some samples."""
        return estimate(self.means[sample] for sample in samples)


def _best(
    versions: "Mapping[str | None, _Rewards]",
) -> tuple[str | None, Estimate | None, Estimate | None]:
    """Return the version that is the best as `Standing.snapshot` says, its reward, and that of the first."""
    if not versions:
        return None, None, None
    (first_id, first), *others = versions.items()
    best_id, best = first_id, first
    is_compared = not others
    for other_id, other in others:
        shared = other.means.keys() & best.means.keys()
        if len(shared) < MIN_SHARED * len(best.means):
            continue
        is_compared = True
        if fmean(other.means[each] for each in shared) > fmean(best.means[each] for each in shared):
            best_id, best = other_id, other
    if not is_compared:
        return None, None, first.on(first.means)
    shared = best.means.keys() & first.means.keys()
    now, before = best.on(shared or best.means), first.on(shared or first.means)
    return (best_id, without_interval(now), without_interval(before)) if others else (best_id, now, before)
