"""Reads the attempts of a run one by one, so that a run may be larger than memory."""

import hashlib
import heapq
import json
import math
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from lightning_core.adapter.attributes import decoded
from lightning_core.algorithm.batch import reward_of
from lightning_core.algorithm.own_calls import is_of_algorithm
from lightning_core.runs.folder import RunFolder
from lightning_core.runs.stored import copied
from lightning_core.secrets import hide_keys_in, remember_environment, remember_secrets
from lightning_core.store import LightningStore
from lightning_core.types import AttemptedRollout, Event, Link, OtelResource, RolloutMode, RolloutStatus, Span

Made = TypeVar("Made")

PAGE_SIZE = 100
"""How many rollouts are read at once."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rollouts of a run are exported, and how."""

    statuses: Sequence[RolloutStatus] = ("succeeded",)
    mode: RolloutMode | None = None
    """What the rollouts were for; None for all."""
    best: int | None = None
    """Of the rollouts of one input, only so many, those with the highest rewards, without one last; None for all."""
    min_reward: float | None = None
    """Only rollouts with at least this reward."""
    redact: bool = False
    """Whether secrets are replaced, and token ids left out."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A rollout that has ended, with its last attempt."""

    rollout: AttemptedRollout
    reward: float | None
    """The final one; None where there is none."""
    spans: list[Span]


@dataclass(slots=True)
class Reading:
    """What has been read of a run; as a text, what the closing line says of it."""

    rollouts: int = 0
    left_out: int = 0
    """Of how many rollouts nothing could be made."""
    example: str = ""
    """One of them, and why."""

    def make(self, of: Callable[[Ended], Made], ended: Ended) -> Made | None:
        """Make something of a rollout. A fault in it costs that rollout, not the others: it is counted and left out."""
        self.rollouts += 1
        try:
            return of(ended)
        except (OSError, MemoryError):
            raise
        except Exception as exc:
            self.left_out += 1
            if not self.example:
                self.example = f"{ended.rollout.rollout_id}: {' '.join(repr(exc).split()):.200}"
            return None

    def __str__(self) -> str:
        return f"{self.rollouts:,} rollouts" + (
            f"; {self.left_out:,} left out, such as {self.example}" if self.left_out else ""
        )


def agent_of(run: RunFolder) -> str:
    """Return what the agent of a run is called, as its config says: `solve` of `agent:solve`."""
    named = run.manifest().origin.config.get("agent")
    named = named.get("name") if isinstance(named, Mapping) else named
    return named.rpartition(":")[2] if isinstance(named, str) and named else "agent"


async def read_ended(run: RunFolder, wanted: Wanted, make: Callable[[Ended], Any]) -> AsyncIterator[Ended]:
    """Yield the rollouts in the order in which they were made; an algorithm's own calls are left out.

    `best` are chosen among those of which `make` makes something, so that no input is lost where its best rollout has
    no recorded call.

    Held at once are one page of rollouts, the spans of one attempt and, for `best`, an id and a reward for each input.

    Raises:
        RunFolderError: When the run has no store in its folder.
    """
    async with copied(run) as store:
        if wanted.redact:
            remember_environment()
            for version in await store.query_resources():
                remember_secrets("resources", version.resources)
        chosen = None if wanted.best is None else await _best(store, wanted, wanted.best, make)
        async for rollout in _rollouts(store, wanted):
            if chosen is not None and rollout.rollout_id not in chosen:
                continue
            reward = await reward_of(store, rollout)
            if wanted.min_reward is None or (reward is not None and reward >= wanted.min_reward):
                spans = list(await store.query_spans(rollout.rollout_id, rollout.attempt.attempt_id))
                if wanted.redact:
                    attempt = rollout.attempt.model_copy(update={"metadata": hide_keys_in(rollout.attempt.metadata)})
                    rollout = rollout.model_copy(update={"input": hide_keys_in(rollout.input), "attempt": attempt})
                    spans = [redacted(span) for span in spans]
                yield Ended(rollout, reward, spans)


def redacted(span: Span) -> Span:
    """Copy a span with secrets replaced by `***`, and without token ids and log-probabilities."""
    fields = {
        "name": hide_keys_in(span.name),
        "attributes": _redacted(span.attributes),
        "status": span.status.model_copy(update={"description": hide_keys_in(span.status.description)}),
        "resource": _with_redacted(span.resource),
        "events": [_with_redacted(each, name=hide_keys_in(each.name)) for each in span.events],
        "links": [_with_redacted(each) for each in span.links],
    }
    return span.model_copy(update=fields)


def _with_redacted(part: Event | Link | OtelResource, **fields: Any) -> Any:
    return part.model_copy(update={"attributes": _redacted(part.attributes), **fields})


def _redacted(attributes: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = hide_keys_in(_without_tokens(attributes))
    # LiteLLM has them in the provider's answer.
    return {name: value for name, value in found.items() if not (name.startswith("llm.") and name.endswith(".choices"))}


def _without_tokens(value: Any) -> Any:
    """Leave out what says the text in tokens, by its name, also in a text that is JSON."""
    if isinstance(value, Mapping):
        return {name: _without_tokens(each) for name, each in value.items() if not _SPELLS_TEXT.search(str(name))}
    if isinstance(value, list | tuple):
        return [_without_tokens(each) for each in value]
    if not isinstance(value, str) or not _SPELLS_TEXT.search(value):
        return value
    parsed = decoded(value)
    return value if parsed is value else json.dumps(_without_tokens(parsed), ensure_ascii=False, default=str)


_SPELLS_TEXT = re.compile("token_ids|logprobs")


async def _rollouts(store: LightningStore, wanted: Wanted) -> AsyncIterator[AttemptedRollout]:
    offset = 0
    modes = None if wanted.mode is None else [wanted.mode]
    while page := await store.query_rollouts(status_in=wanted.statuses, mode_in=modes, limit=PAGE_SIZE, offset=offset):
        offset += len(page)
        for rollout in page:
            if isinstance(rollout, AttemptedRollout) and not is_of_algorithm(rollout):
                yield rollout


async def _best(store: LightningStore, wanted: Wanted, count: int, make: Callable[[Ended], Any]) -> set[str]:
    """Return the ids of the best rollouts of each input; of equally good ones the earliest."""
    best: dict[bytes, list[tuple[float, int, str]]] = {}
    reading = Reading()
    place = 0
    async for rollout in _rollouts(store, wanted):
        place -= 1
        reward = await reward_of(store, rollout)
        rank = -math.inf if reward is None else reward
        task = json.dumps([rollout.mode, rollout.input], sort_keys=True, default=str)
        kept = best.setdefault(hashlib.sha256(task.encode()).digest(), [])
        if len(kept) < count or rank > kept[0][0]:
            spans = list(await store.query_spans(rollout.rollout_id, rollout.attempt.attempt_id))
            if reading.make(make, Ended(rollout, reward, spans)):
                heapq.heappush(kept, (rank, place, rollout.rollout_id))
                if len(kept) > count:
                    heapq.heappop(kept)
    return {rollout_id for kept in best.values() for *_, rollout_id in kept}
