"""How an attempt went: it succeeded, the agent failed, it was stopped, or something else failed."""

import asyncio
import logging
import math
import numbers
import os
import sysconfig
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any
from urllib.parse import urlsplit

from lightning_core.adapter import read_usage
from lightning_core.adapter.usage import METADATA as USAGE, Usage, as_metadata
from lightning_core.emitter import emit_reward, get_rewards_from_span
from lightning_core.errors import (
    AgentTimeout,
    AttemptStopped,
    Fault,
    InvalidResult,
    InvalidTransition,
    NotFound,
)
from lightning_core.lifecycle import RUN_STOPPED
from lightning_core.runner.clients import find_no_answer
from lightning_core.secrets import hide_in_text
from lightning_core.store import LightningStore
from lightning_core.texts import cut
from lightning_core.types import Attempt, AttemptedRollout, AttemptStatus, Rollout, Span, SpanCoreFields
from lightning_core.types.text import well_formed

logger = logging.getLogger(__name__)

PAUSE = "pause_seconds"
"""Where an attempt's metadata say how long its rollout was kept back after a fault of its model."""

_ALLOWED = "None, a number, a dict of numbers by name, or a list of spans (ReadableSpan, Span or SpanCoreFields)"


def record_result(result: Any, rollout: AttemptedRollout, *, is_traced: bool) -> list[Span]:
    """Emit the reward that an agent returned.

    Must be called in the attempt's trace.

    Args:
        result: What the agent returned.
        rollout: The attempt.
        is_traced: Whether the trace takes what is emitted; if not, the reward is among the spans that are returned.

    Returns:
        The spans that it returned, addressed to its attempt: the caller hands them to the store.

    Raises:
        InvalidResult: When it is nothing that an agent may return; says what is.
        ValueError: When a reward is not finite.
    """
    if result is None:
        return []
    if isinstance(result, Sequence) and not isinstance(result, str | bytes):
        return [_as_span(item, rollout, result) for item in result]
    if _is_number(result):
        reward = emit_reward(result, propagate=is_traced)
    elif isinstance(result, Mapping) and result and all(map(_is_number, result.values())):
        reward = emit_reward({str(name): value for name, value in result.items()}, propagate=is_traced)
    else:
        raise InvalidResult(f"the agent returned {_describe(result)}; allowed are {_ALLOWED}")
    return [] if is_traced else [_as_span(reward, rollout, result)]


def spans_of(result: Any, rollout: AttemptedRollout) -> list[Span]:
    """Return the spans that an agent returned, addressed to its attempt; none where it returned anything else."""
    if not isinstance(result, Sequence) or not result or not all(map(_is_span, result)):
        return []
    return [_as_span(item, rollout, result) for item in result]


def check_rewards(spans: Iterable[Span]) -> None:
    """Refuse rewards that cannot be read or computed with; those that `emit_reward` made are sound.

    Raises:
        InvalidResult: When a reward has no name or no number, or is not finite; names the span.
    """
    for span in spans:
        try:
            rewards = get_rewards_from_span(span)
        except ValueError as exc:
            raise InvalidResult(str(exc)) from exc
        for reward in rewards:
            if not math.isfinite(reward.value):
                raise InvalidResult(
                    f"span {span.name!r} has a reward {reward.name!r} that is not finite: {reward.value}"
                )


def _as_span(item: Any, rollout: AttemptedRollout, result: Any) -> Span:
    rollout_id, attempt_id = rollout.rollout_id, rollout.attempt.attempt_id
    if isinstance(item, Span):
        return item.model_copy(update={"rollout_id": rollout_id, "attempt_id": attempt_id, "sequence_id": 0})
    if isinstance(item, SpanCoreFields):
        return Span.from_core_fields(item, rollout_id=rollout_id, attempt_id=attempt_id)
    if _is_span(item):
        return Span.from_opentelemetry(item, rollout_id, attempt_id, 0)
    raise InvalidResult(
        f"the agent returned {_describe(result)} with a {type(item).__name__} in it; allowed are {_ALLOWED}"
    )


def _is_span(item: Any) -> bool:
    is_readable = hasattr(item, "get_span_context") and hasattr(item, "attributes")
    return is_readable or isinstance(item, Span | SpanCoreFields)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real)


def _describe(value: Any) -> str:
    return f"a {type(value).__name__} ({cut(repr(value), 80)})"


@dataclass(slots=True)
class Outcome:
    """How an attempt went."""

    status: AttemptStatus = "succeeded"
    error: Exception | None = None
    is_fault: bool = False
    """Whether the error is not the agent's."""
    pause_seconds: float | None = None
    """How long the runner kept the rollout back after a fault, for its model to come back; None for another fault."""
    result: Any = None
    """What the agent returned."""
    spans: list[Span] = field(default_factory=list)
    """All that it recorded, in order."""
    agent_at: str = ""
    """Where the agent is defined, for an error that was raised after it had returned."""

    def end_with(self, error: Exception) -> None:
        """Take note of what ended the attempt, and whose it is."""
        self.error = error
        self.status = "timeout" if isinstance(error, AgentTimeout) else "failed"
        self.is_fault = is_fault(error)

    @property
    def usage(self) -> Usage:
        """What its model calls used."""
        return read_usage(self.spans)

    @property
    def was_stopped(self) -> bool:
        """Whether the store did not want the attempt any more."""
        return isinstance(self.error, AttemptStopped)

    @property
    def failure(self) -> dict[str, str] | None:
        """The type and the message of the error, and where it was raised, as an attempt's metadata have them."""
        if self.error is None:
            return None
        where = place_in_user_code(self.error) or self.agent_at
        return describe(self.error) | ({"where": where} if where else {})


def is_fault(error: BaseException) -> bool:
    """Whether an error is a `Fault`, says that a model gave no answer, or is a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_fault, error.exceptions))
    return isinstance(error, Fault) or find_no_answer(error) is not None


def describe(error: Exception) -> dict[str, str]:
    """Return an error's type and message, as text that every store can keep, without secrets."""
    shown = traceback.TracebackException(type(error), error, None)  # str(error) may fail in its turn
    message = well_formed(str(shown)) or type(error).__name__
    if (url := _url_of(error)) is not None:
        message += f" ({url}" + (f": {error.__cause__})" if error.__cause__ else ")")
    return {"type": type(error).__name__, "message": hide_in_text(message)}


def place_in_user_code(error: BaseException) -> str:
    """Return where an error passed the user's code last, as `agent.py:12 in score`; empty where it did not.

    Python, installed packages and this one are not the user's.
    """
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        place = place_of(frame.f_code, line) or place
    return place_in_user_code(error.__cause__) if not place and error.__cause__ is not None else place


def place_of(code: CodeType, line: int) -> str:
    """Return a place in the user's code, as `agent.py:12 in score`; empty for other code."""
    if not is_the_users(code.co_filename):
        return ""
    path = Path(code.co_filename)
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return f"{path}:{line} in {code.co_name}"


def is_the_users(file: str) -> bool:
    """Whether a file of code is neither Python's, nor an installed package's, nor this one's."""
    return not file.startswith(("<", *_NOT_THE_USERS))


def _url_of(error: Exception) -> str | None:
    """Return the URL that a model's client could not reach, without what may be secret in it."""
    no_answer = find_no_answer(error)
    if no_answer is None or not no_answer.is_out_of_reach:
        return None
    url = urlsplit(str(getattr(getattr(error, "request", None), "url", "")))
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}" if url.netloc else None


_NOT_THE_USERS = (
    *{sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    str(Path(__file__).parent.parent) + os.sep,
)


_MAX_KNOWN_FAULTS = 1000

LAST_WORDS_SECONDS = 0.5
"""How long a runner that is cancelled may take to give its rollout back. Somebody waits for its end."""


async def report(
    store: LightningStore, rollout: AttemptedRollout, outcome: Outcome, *, may_requeue: bool
) -> Attempt | None:
    """Record how an attempt went.

    Args:
        store: Where the rollout was claimed.
        rollout: The rollout, with the attempt.
        outcome: How it went.
        may_requeue: Whether a fault queues the rollout again; else it is cancelled.

    Returns:
        The attempt as it is now; None when the store had given it up with another status, or deleted it.

    Raises:
        Exception: What the store raised, when it is out of reach.
    """
    rollout_id, attempt_id, failure = rollout.rollout_id, rollout.attempt.attempt_id, outcome.failure
    metadata: dict[str, Any] = {}
    usage = outcome.usage
    if usage.calls:
        metadata[USAGE] = as_metadata(usage)
    if outcome.pause_seconds is not None:
        metadata[PAUSE] = outcome.pause_seconds
    try:
        if failure is not None and outcome.error is not None and outcome.is_fault:
            if metadata:  # a fault adds its reason, and ends the attempt
                await store.update_attempt(rollout_id, attempt_id, add_metadata=metadata)
            return await _fault(store, rollout, _line_of(failure), may_requeue=may_requeue)
        if failure is not None:
            metadata["failure"] = failure
        attempt = await store.update_attempt(rollout_id, attempt_id, status=outcome.status, add_metadata=metadata)
    except (InvalidTransition, NotFound) as exc:
        logger.warning("lightning.late_result rollout_id=%s attempt_id=%s: %s", rollout_id, attempt_id, exc)
        return None
    if failure is not None:
        logger.info(
            "lightning.attempt_failed rollout_id=%s attempt_id=%s status=%s: %s: %s",
            rollout_id,
            attempt_id,
            attempt.status,
            failure["type"],
            failure["message"],
            exc_info=outcome.error if logger.isEnabledFor(logging.DEBUG) else None,
        )
    return attempt


def has_succeeded_by(rollout: Rollout, attempt: Attempt) -> bool:
    """Whether a rollout has succeeded, and by this attempt: the result of one that was given up counts for nothing."""
    newest = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
    is_newest = newest is not None and newest.attempt_id == attempt.attempt_id
    return is_newest and rollout.status == attempt.status == "succeeded"


async def give_back(
    store: LightningStore, rollout: AttemptedRollout, *, may_requeue: bool, reason: str = RUN_STOPPED
) -> None:
    """Report, within a short time, that an attempt has no worker any more, so that others need not wait for its lease.

    Does nothing for one that has ended. What goes wrong is logged: then the lease has to do.
    """
    try:
        async with asyncio.timeout(LAST_WORDS_SECONDS):
            await _fault(store, rollout, reason, may_requeue=may_requeue)
    except (InvalidTransition, NotFound):
        return
    except Exception as exc:
        why = str(exc) or type(exc).__name__
        logger.warning("lightning.rollout_not_given_back rollout_id=%s: %s", rollout.rollout_id, why)


async def give_back_claimed(store: LightningStore, worker_id: str, request_id: str) -> None:
    """Give back what a cancelled claim may have got, where the store's answer came too late to be read.

    Otherwise the store would find out only when the lease ends.
    """
    try:
        async with asyncio.timeout(LAST_WORDS_SECONDS):
            # None beyond: a claim that has not reached the store must not begin now.
            claimed = await store.dequeue_many_rollouts(limit=0, worker_id=worker_id, request_id=request_id)
    except Exception as exc:  # such as a store that is gone: then the lease has to do
        logger.info("lightning.claim_not_given_back worker_id=%s: %s", worker_id, exc)
        return
    for rollout in claimed:
        await give_back(store, rollout, may_requeue=True)


_known_faults: set[tuple[str, str]] = set()
"""By run, the faults that a warning was logged of. Of a model that is down each attempt has one."""


def log_fault(store: LightningStore, attempt: Attempt, outcome: Outcome) -> None:
    """Log a fault: the first of its kind in a run as a warning, with a traceback where it is a surprise."""
    error = outcome.error
    assert error is not None
    assert outcome.failure is not None
    why = _line_of(outcome.failure)
    kind = (store.run_id, why.replace(attempt.rollout_id, "").replace(attempt.attempt_id, ""))  # a proxy's URL has them
    is_known = kind in _known_faults
    if len(_known_faults) >= _MAX_KNOWN_FAULTS:
        _known_faults.clear()
    _known_faults.add(kind)
    shows_traceback = logger.isEnabledFor(logging.DEBUG) or not (is_known or is_fault(error))
    logger.log(
        logging.INFO if is_known else logging.WARNING,
        "lightning.fault rollout_id=%s attempt_id=%s: %s%s%s",
        attempt.rollout_id,
        attempt.attempt_id,
        why,
        f"; its runner waits for {outcome.pause_seconds:.1f} s" if outcome.pause_seconds else "",
        "" if is_known else "; further ones like this are logged at level INFO",
        exc_info=error if shows_traceback else None,
    )


def _line_of(failure: Mapping[str, str]) -> str:
    return f"{failure['type']}: {failure['message']}"


async def _fault(store: LightningStore, rollout: AttemptedRollout, reason: str, *, may_requeue: bool) -> Attempt:
    if not may_requeue:
        await store.update_rollout(rollout.rollout_id, status="cancelled")
    return await store.report_fault(rollout.rollout_id, rollout.attempt.attempt_id, reason)
