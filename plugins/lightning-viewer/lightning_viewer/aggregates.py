"""What is known of all rollouts of a run together, kept up to date as they change."""

import hashlib
import heapq
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from lightning_core.adapter.usage import Usage, total_usage, usage_in
from lightning_core.algorithm import describe_failure
from lightning_core.algorithm.batch import is_kept_back
from lightning_core.algorithm.estimates import estimate
from lightning_core.algorithm.own_calls import is_of_algorithm
from lightning_core.cli.console import to_json
from lightning_core.runs.result import Failure, RolloutCounts, RunUsage, failure_at, pattern_of
from lightning_core.texts import cut
from lightning_core.types import (
    AttemptedRollout,
    NamedResources,
    PromptTemplate,
    ResourcesUpdate,
    Rollout,
    RolloutMode,
    RolloutStatus,
    sample_key,
)

K = TypeVar("K")

MAX_INPUT = 1_000
"""How many characters of an input are kept, as JSON; a longer one is cut short where it is long."""

MAX_FAILURE = 500
"""How many characters of a failure are kept."""

Order = Literal["worst", "best", "newest", "oldest", "slowest"]
"""How rows are sorted. A rollout that ended without a reward counts as the worst, one that has not ended comes last."""


@dataclass(frozen=True, slots=True)
class Row:
    """A rollout, without what it was given and what was said."""

    rollout_id: str
    sample: int
    """The number of its input, the same for equal inputs; numbers count from 0 in the order of their first rollouts."""
    mode: str | None
    kept_back: bool
    """Whether the algorithm neither learned from its sample nor chose by it."""
    resources_id: str | None
    step: int | None
    """The step of the training that it belongs to, where the algorithm noted that in its metadata."""
    status: str
    reward: float | None
    start: float
    end: float | None
    attempts: int
    calls: int
    failure: str | None
    """Why it gave no reward; None while it may still give one."""
    where: str
    """Where in the user's code it failed; empty where that is not known."""
    seconds: float | None
    """How long its newest attempt took; None while it goes on, or without one. The time in the queue is not in it."""


_SHOWN = ("sample", "mode", "step", "status", "reward", "start", "seconds", "attempts", "calls", "failure")
"""What the pages have of a row as it is."""


class Filter(BaseModel):
    """Which rows to show; None for a condition that does not apply."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    mode: RolloutMode | Literal["other"] | None = None
    """`other` for rollouts without a mode."""
    status: RolloutStatus | None = None
    version: int | None = None
    """The number of the resources, as `Aggregates.versions` lists them, from 0."""
    step: int | None = None
    sample: int | None = None
    text: str | None = None
    """In the id, the failure or the input, in capitals or not."""
    reward_from: FiniteFloat | None = Field(default=None, alias="from")
    reward_to: FiniteFloat | None = Field(default=None, alias="to")
    without_reward: bool = False
    """Only rollouts that ended, and gave no reward."""


class Question(Filter):
    """Which page of the rows to show, as a page asks for it."""

    order: Order = "worst"
    limit: int = Field(default=100, ge=0, le=1_000)
    offset: int = Field(default=0, ge=0)


class Aggregates:
    """The numbers of a run, from its rollouts and resources, put in one by one and in any order.

    A rollout that is put in again takes the place of what was known of it, so a change costs the same however many
    rollouts there are. What is asked for is computed when it is asked for, and only where something has changed. It
    keeps one row of a few hundred bytes for each rollout, and each distinct input cut short. Inputs come back as they
    are: whoever shows them hides the secrets, as `to_json` does.
    """

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self._samples: dict[bytes, int] = {}
        self._inputs: list[str] = []
        self._usage: dict[str, tuple[Usage, bool]] = {}
        """Of rollouts with model calls; and whether they are the algorithm's own."""
        self._used: RunUsage | None = None
        """The sum of these, until one changes."""
        self._statuses: Counter[str] = Counter()
        self._retried = self._unrewarded = 0
        self._failures: _Groups[str] = _Groups()
        self._by_version: _Groups[tuple[str | None, str | None]] = _Groups()
        self._by_step: _Groups[tuple[int, str | None]] = _Groups()
        self._updates: dict[str, ResourcesUpdate] = {}
        self._versions: list[list[str]] = []
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        """Count the rollouts, without those of the algorithm's own calls."""
        return len(self._rows)

    def put(self, rollout: Rollout, reward: float | None, *, earlier: Usage | None = None) -> None:
        """Take in a rollout as it is now.

        Args:
            rollout: The rollout.
            reward: Its reward; None where it has none.
            earlier: What the model calls of its attempts before the newest one used.
        """
        self.discard(rollout.rollout_id)
        attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
        usage = usage_in(None if attempt is None else attempt.metadata)
        whole = usage if earlier is None else earlier + usage
        if whole.calls:
            self._used = None
            self._usage[rollout.rollout_id] = whole, is_of_algorithm(rollout)
        if is_of_algorithm(rollout):
            return
        has_no_reward = rollout.status == "failed" or (rollout.status == "succeeded" and reward is None)
        step = (rollout.metadata or {}).get("step")
        row = Row(
            rollout_id=rollout.rollout_id,
            sample=self._sample(rollout.input),
            mode=rollout.mode,
            kept_back=is_kept_back(rollout),
            resources_id=rollout.resources_id,
            step=step if type(step) is int else None,
            status=rollout.status,
            reward=reward,
            start=rollout.start_time,
            end=rollout.end_time,
            attempts=0 if attempt is None else attempt.sequence_id,
            calls=usage.calls,
            failure=cut(describe_failure(rollout), MAX_FAILURE) if has_no_reward else None,
            where=failure_at(attempt) if has_no_reward and attempt is not None else "",
            seconds=None if attempt is None or attempt.end_time is None else attempt.end_time - attempt.start_time,
        )
        self._rows[row.rollout_id] = row
        self._count(row, 1)
        for groups, key in self._groups_of(row):
            groups.add(key, row)

    def discard(self, rollout_id: str) -> None:
        """Forget a rollout, such as one that was deleted; nothing happens where it is not known."""
        if self._usage.pop(rollout_id, None) is not None:
            self._used = None
        row = self._rows.pop(rollout_id, None)
        if row is not None:
            self._count(row, -1)
            for groups, key in self._groups_of(row):
                groups.remove(key, row)

    def put_resources(self, updates: Iterable[ResourcesUpdate]) -> None:
        """Take in versions of the resources. Equal ones are one: the same prompt may be added again.

        A rollout may be put in before the version that it used.
        """
        self._updates.update({each.resources_id: each for each in updates})
        self._versions, self._numbers = [], {}
        known: dict[str, int] = {}
        for each in sorted(self._updates.values(), key=lambda each: (each.create_time, each.resources_id)):
            number = known.setdefault(sample_key(each.resources), len(self._versions))
            if number == len(self._versions):
                self._versions.append([])
            self._versions[number].append(each.resources_id)
            self._numbers[each.resources_id] = number

    def knows_resources(self, resources_id: str | None) -> bool:
        """Whether a version was put in; without an id there is nothing to know."""
        return resources_id is None or resources_id in self._updates

    # All rollouts together

    def summary(self) -> dict[str, Any]:
        """Return `counts`, `failures`, `usage` and `steps`, as JSON values.

        `failures` has the causes, the most frequent first. `usage` has the model calls of the agent and of the
        algorithm. `steps` has the mean reward of each step and mode, with its interval, where rollouts know their step.
        """
        return {
            "counts": asdict(self.counts()),
            "failures": [asdict(each) for each in self.failures()],
            "usage": asdict(self.usage()),
            "steps": [
                {"step": step, "mode": mode, **measured}
                for step, mode in sorted(self._by_step, key=lambda key: (key[0], key[1] or ""))
                if (measured := self._by_step.cached((step, mode), _mean_reward)) is not None
            ],
        }

    def counts(self) -> RolloutCounts:
        """Count rollouts by how they ended."""
        ended = {status: self._statuses[status] for status in ("succeeded", "failed", "cancelled")}
        unfinished = len(self._rows) - sum(ended.values())
        return RolloutCounts(**ended, unfinished=unfinished, retried=self._retried, unrewarded=self._unrewarded)

    def failures(self) -> list[Failure]:
        """Return why rollouts failed, the most frequent cause first; see `lightning_core.runs.result`."""
        failures: list[Failure] = [
            self._failures.cached(pattern, partial(self.failure, pattern)) for pattern in self._failures
        ]
        return sorted(failures, key=lambda failure: (-failure.count, failure.cause))

    def usage(self) -> RunUsage:
        """Add up what the attempts used that have told it: those that have ended."""
        if self._used is None:
            agent, algorithm = (
                total_usage(usage for usage, is_own in self._usage.values() if is_own is wanted)
                for wanted in (False, True)
            )
            self._used = RunUsage(agent, algorithm)
        return self._used

    def versions(self, best: NamedResources | None = None) -> list[dict[str, Any]]:
        """Return each distinct version of the resources with its parent and its rollouts' rewards, as JSON values.

        Args:
            best: The resources that are marked as the best.
        """
        best_number = self.number_of(best)
        versions = []
        for number, ids in enumerate(self._versions):
            first = self._updates[ids[0]]
            versions.append(
                {
                    "id": first.resources_id,
                    "created": first.create_time,
                    "parent": self.parent_of(number),
                    "texts": _texts(first.resources),
                    "is_best": number == best_number,
                    "rewards": self._rewards(ids),
                }
            )
        return versions

    def number_of(self, resources: NamedResources | None) -> int | None:
        """Return the number of the version that these resources are; None where there is no such version."""
        key = None if resources is None else sample_key(resources)
        numbers = (n for n, ids in enumerate(self._versions) if sample_key(self._updates[ids[0]].resources) == key)
        return next(numbers, None)

    def parent_of(self, number: int) -> int | None:
        """Return the number of the version that a version was made from; None where that is not known."""
        parents = (self._numbers.get(self._updates[each].parent_id or "") for each in self._versions[number])
        # An older version whose equal was made again later, from one of its own descendants, keeps its place.
        return next((parent for parent in parents if parent is not None and parent < number), None)

    @property
    def version_count(self) -> int:
        """How many distinct versions of the resources there are."""
        return len(self._versions)

    # One by one

    def page(self, asked: Question) -> dict[str, Any]:
        """Return a page of the rollouts.

        Returns:
            `rollouts`, rows as `row` returns them; `inputs` by sample; `total`, how many there are on all pages; `all`,
            how many there are without the filter.
        """
        found = self.find(asked)
        rows = _first(found, asked.order, asked.offset + asked.limit)[asked.offset :]
        return {
            "all": len(self),
            "rollouts": [self.as_json(each) for each in rows],
            "inputs": self.inputs(each.sample for each in rows),
            "total": len(found),
        }

    def first(self, order: Order, limit: int) -> list[Row]:
        """Return the first so many rows in an order."""
        return _first(self._rows.values(), order, limit)

    def find(self, chosen: Filter) -> list[Row]:
        """Return the rows that a filter lets pass, in no order."""
        conditions = list(self._conditions(chosen))
        return [row for row in self._rows.values() if all(holds(row) for holds in conditions)]

    def row(self, rollout_id: str) -> dict[str, Any] | None:
        """Return a rollout as JSON values, None where it is not known.

        They are `id`, `sample`, `mode`, `resources` (the number of its version), `step`, `status`, `reward`, `start`,
        `seconds`, `attempts`, `calls` and `failure`.
        """
        row = self._rows.get(rollout_id)
        return None if row is None else self.as_json(row)

    def as_json(self, row: Row) -> dict[str, Any]:
        """Return a row as `row` does."""
        shown = {name: getattr(row, name) for name in _SHOWN}
        return {"id": row.rollout_id, "resources": self.version_of(row), **shown}

    def version_of(self, row: Row) -> int | None:
        """Return the number of the version of the resources that a rollout used; None where that is not known."""
        return self._numbers.get(row.resources_id or "")

    def sample_keys(self) -> list[bytes]:
        """Return what tells each sample from others, in other runs, too; by its number."""
        return list(self._samples)

    def inputs(self, samples: Iterable[int]) -> dict[int, Any]:
        """Return the inputs of samples, cut short where they are long."""
        return {sample: json.loads(self._inputs[sample]) for sample in samples}

    def _sample(self, value: Any) -> int:
        key = hashlib.blake2b(sample_key(value).encode("utf-8", "surrogatepass"), digest_size=16).digest()
        number = self._samples.setdefault(key, len(self._inputs))
        if number == len(self._inputs):
            self._inputs.append(short_json(value))
        return number

    def _count(self, row: Row, by: int) -> None:
        self._statuses[row.status] += by
        self._retried += by * (row.attempts > 1)
        self._unrewarded += by * (row.status == "succeeded" and row.reward is None)

    def _groups_of(self, row: Row) -> "Iterable[tuple[_Groups[Any], Any]]":
        yield self._by_version, (row.resources_id, row.mode)
        if row.step is not None:
            yield self._by_step, (row.step, row.mode)
        if row.status == "failed" and row.failure is not None:
            yield self._failures, pattern_of(row.failure)

    def failure(self, pattern: str, rows: Sequence[Row]) -> Failure:
        """Return what is said of rollouts that gave no reward for one reason; see `pattern_of`."""
        first = min(rows, key=_by_age)
        message = first.failure or ""
        cause = message if all(each.failure == message for each in rows) else pattern
        return Failure(cause, len(rows), first.rollout_id, message, json.loads(self._inputs[first.sample]), first.where)

    def _rewards(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        modes = [
            mode for mode in (None, "test", "train", "val") if any((each, mode) in self._by_version for each in ids)
        ]
        rewards = []
        for mode in modes:
            keys = [(each, mode) for each in ids if (each, mode) in self._by_version]
            measured = (
                self._by_version.cached(keys[0], _mean_reward)
                if len(keys) == 1
                else _mean_reward([row for key in keys for row in self._by_version.rows(key)])
            )
            if measured is not None:
                rewards.append({"mode": mode, **measured})
        return rewards

    def by_sample(self, version: int | None, wanted: str) -> dict[int, list[Row]]:
        """Return the rollouts of a version that gave a reward, or failed, by sample; those with a reward first.

        Args:
            version: Its number; None for rollouts without a version.
            wanted: Their mode, `other` for those without one.
        """
        samples: dict[int, list[Row]] = {}
        for resources_id, mode in self._by_version:
            if self._numbers.get(resources_id or "") == version and wanted == (mode or "other"):
                for row in self._by_version.rows((resources_id, mode)):
                    if row.reward is not None or row.failure is not None:
                        samples.setdefault(row.sample, []).append(row)
        for rows in samples.values():
            rows.sort(key=lambda row: (row.reward is None, _by_age(row)))
        return samples

    def _conditions(self, chosen: Filter) -> Iterable[Callable[[Row], bool]]:
        if chosen.mode is not None:
            mode = None if chosen.mode == "other" else chosen.mode
            yield lambda row: row.mode == mode
        if chosen.status is not None:
            yield lambda row: row.status == chosen.status
        if chosen.version is not None:
            ids = set(self._versions[chosen.version]) if 0 <= chosen.version < len(self._versions) else set()
            yield lambda row: row.resources_id in ids
        if chosen.step is not None:
            yield lambda row: row.step == chosen.step
        if chosen.sample is not None:
            yield lambda row: row.sample == chosen.sample
        if (low := chosen.reward_from) is not None:
            yield lambda row: row.reward is not None and row.reward >= low
        if (high := chosen.reward_to) is not None:
            yield lambda row: row.reward is not None and row.reward <= high
        if chosen.without_reward:
            yield lambda row: row.failure is not None
        if chosen.text:
            text = chosen.text.lower()
            samples = {number for number, each in enumerate(self._inputs) if text in each.lower()}
            yield lambda row: row.sample in samples or text in row.rollout_id or text in (row.failure or "").lower()


class _Groups(Generic[K]):
    """Rows by a key, and what was computed of each group since it changed last."""

    def __init__(self) -> None:
        self._rows: dict[K, dict[str, Row]] = {}
        self._computed: dict[K, Any] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._rows

    def __iter__(self) -> Iterator[K]:
        return iter(self._rows)

    def rows(self, key: K) -> Iterable[Row]:
        return self._rows[key].values()

    def add(self, key: K, row: Row) -> None:
        self._rows.setdefault(key, {})[row.rollout_id] = row
        self._computed.pop(key, None)

    def remove(self, key: K, row: Row) -> None:
        rows = self._rows[key]
        del rows[row.rollout_id]
        if not rows:
            del self._rows[key]
        self._computed.pop(key, None)

    def cached(self, key: K, compute: Callable[[Sequence[Row]], Any]) -> Any:
        if key not in self._computed:
            self._computed[key] = compute(list(self._rows[key].values()))
        return self._computed[key]


def _by_age(row: Row) -> tuple[float, str]:
    return row.start, row.rollout_id


_WORST = float("-inf")


def _badness(row: Row) -> float:
    if row.reward is not None:
        return row.reward
    return -_WORST if row.failure is None else _WORST


_ORDERS: Mapping[str, Callable[[Row], tuple[float, float, str]]] = {
    "worst": lambda row: (_badness(row), row.start, row.rollout_id),
    "best": lambda row: (-_WORST if row.reward is None else -row.reward, row.start, row.rollout_id),
    "newest": lambda row: (-row.start, 0.0, row.rollout_id),
    "oldest": lambda row: (row.start, 0.0, row.rollout_id),
    "slowest": lambda row: (-(row.seconds or 0.0), row.start, row.rollout_id),
}


def _first(rows: Iterable[Row], order: Order, limit: int) -> list[Row]:
    return heapq.nsmallest(limit, rows, key=_ORDERS[order])


def mean_of(rows: Iterable[Row]) -> float | None:
    """Return the mean reward, the same in whatever order the rows are; None where none has one."""
    rewards = [each.reward for each in rows if each.reward is not None]
    return math.fsum(rewards) / len(rewards) if rewards else None


def _mean_reward(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Return the mean reward over samples, with its interval; a sample counts once, one without a reward is lost."""
    rewards: dict[int, list[Row]] = {}
    lost = set()
    for row in rows:
        if row.reward is not None:
            rewards.setdefault(row.sample, []).append(row)
        elif row.failure is not None or row.status == "cancelled":
            lost.add(row.sample)
    means = sorted(mean for each in rewards.values() if (mean := mean_of(each)) is not None)
    measured = estimate([*means, *[None] * len(lost - rewards.keys())])
    return None if measured is None else asdict(measured)


def _texts(resources: NamedResources) -> dict[str, str]:
    """Return what people read of each resource: a prompt's text, or a model's name."""
    return {
        name: each.template if isinstance(each, PromptTemplate) else str(getattr(each, "model", type(each).__name__))
        for name, each in resources.items()
    }


def short_json(value: Any, most: int = MAX_INPUT) -> str:
    """Return a value as JSON; a longer one as the beginning of that, as a text.

    Secrets are hidden only in what is cut, since a part of one is not known as one; see `Aggregates`.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (TypeError, ValueError):  # keys that JSON does not have, or a value that holds itself
        text = json.dumps(repr(value), ensure_ascii=False)
    if len(text) <= most:
        return text
    hidden = to_json(json.loads(text))
    whole = hidden if isinstance(hidden, str) else json.dumps(hidden, ensure_ascii=False)
    return json.dumps(cut(whole, most // 2), ensure_ascii=False)
