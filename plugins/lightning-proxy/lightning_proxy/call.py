"""A model call under way, which others can cut off."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from lightning_http.call import ClientGone

from lightning_proxy import parts
from lightning_proxy.answer import Answer, AnswerChoice
from lightning_proxy.dialects import Dialect
from lightning_proxy.exchange import Exchange
from lightning_proxy.owner import Owner
from lightning_proxy.refusals import Refused, proxy_stopped

_LATER_SECONDS = 0.05
"""After how long it is looked whether an agent waits that gets nothing before its whole answer."""


class HungUp(ClientGone):
    """The agent does not wait for the answer any more."""


class Call:
    """One call, in the task that answers it: a block which `abort`, and the agent by hanging up, end.

    Args:
        exchange: The agent's request, whose body was read.
        is_stream: Whether the agent gets its answer in pieces. Then it is watched from the beginning; otherwise only if
            the call is not over in a moment.

    Raises:
        Refused: When the block was cut off, or the server stops.
        HungUp: When the agent is gone.
    """

    def __init__(self, exchange: Exchange, *, is_stream: bool) -> None:
        self._exchange = exchange
        self._is_stream = is_stream
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._cut: Exception | None = None
        self._is_open = False
        self._timer: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None

    def abort(self, reason: str) -> None:
        """Cut it off; the agent is told to try again. Does nothing once it has ended."""
        self._interrupt(Refused(503, "call_aborted", f"the call was cut off: {reason}", retry_after=1.0))

    async def __aenter__(self) -> Self:
        if self._is_stream:
            self._watch()
        else:
            self._timer = self._loop.call_later(_LATER_SECONDS, self._watch)
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = False
        task, self._task = self._task, None  # whose context knows the call: without it both are let go of at once
        if self._timer is not None:
            self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()
        if isinstance(error, asyncio.CancelledError):
            if self._cut is not None and task is not None and task.uncancel() == 0:
                raise self._cut from None
            self._exchange.hurry()
            raise proxy_stopped() from None  # nobody else cancels requests than the server when it stops

    def _watch(self) -> None:
        self._watching = self._loop.create_task(self._until_gone(), name="hang-up of an agent")

    async def _until_gone(self) -> None:
        await self._exchange.gone()
        if not self._exchange.is_done:  # the server says the same of an answer that has come to its end
            self._interrupt(HungUp())

    def _interrupt(self, why: Exception) -> None:
        if self._is_open and self._cut is None and self._task is not None:
            self._cut = why
            self._task.cancel()


@dataclass(slots=True)
class CallRecord:
    """One call. Times are in seconds since the epoch, durations by a clock that never goes back."""

    owner: Owner
    dialect: Dialect
    request: dict[str, Any]
    """What the agent asked, as it asked it."""
    began: float
    purpose: str | None = None
    """What it is for, where it is none of the agent's own."""
    parent: tuple[str, str] | None = None
    """The trace id and the span id that the agent's call is part of, where it says so."""
    body_bytes: int = 0
    """How many bytes the agent sent."""
    size: int = 0
    """About how many bytes it holds."""
    duration: float = 0.0
    first_chunk_seconds: float | None = None
    """From the call's beginning to the first piece of a stream."""
    address: str | None = None
    """The backend that it went to last."""
    model_name: str | None = None
    """The model that it went to, by the name that agents say."""
    price: Callable[[int | None, int | None, int | None], float | None] | None = None
    """Says what a call costs there: see `Replica.cost`. None for a call that was not sent."""
    tries: int = 0
    weight_version: str | None = None
    """When the call was sent."""
    last_weight_version: str | None = None
    """When it ended."""
    answer: Answer = field(default_factory=Answer)
    error_kind: str | None = None
    error: str | None = None
    error_code: str | None = None
    """What the backend calls it."""
    is_refused: bool = False
    """Whether the backend refused it, and so used nothing."""
    was_taken: bool = False
    """Whether the agent had the whole answer of a stream, if not all of the stream."""
    status: int = 0
    """The HTTP status that the agent got; 0 for none."""
    cost: float | None = None

    def fail(self, kind: str, message: str) -> None:
        """Take note of what went wrong; the first one stays."""
        if self.error_kind is None:
            self.error_kind, self.error = kind, message

    @property
    def input_tokens(self) -> int | None:
        """How many tokens went in: as the backend says, or by their ids; None where nobody knows."""
        answer = self.answer
        if answer.input_tokens is None and answer.prompt_token_ids is not None:
            return len(answer.prompt_token_ids)
        return answer.input_tokens

    @property
    def output_tokens(self) -> int | None:
        """How many tokens came out, likewise. A stream that was broken off has no usage, but ids."""
        answer = self.answer
        if answer.output_tokens is None and answer.prompt_token_ids is not None:
            return sum(len(choice.token_ids or ()) for choice in answer.choices)
        return answer.output_tokens

    def spent(self) -> tuple[int, int]:
        """Return how many tokens went in and out as a budget counts them: what nobody told is estimated.

        A token for 4 bytes of the request, and for 4 characters of the answer as far as it came.
        """
        given, taken = self.input_tokens, self.output_tokens
        if given is None:
            given = _quarter(self.body_bytes)
        if taken is None or self.error_kind is not None:  # what a stream that broke off said of it was not the last
            taken = max(taken or 0, sum(map(_received, self.answer.choices)))
        return given, taken


def _received(choice: AnswerChoice) -> int:
    if choice.token_ids is not None:
        return len(choice.token_ids)
    calls = (parts.tool_call_part(call)["arguments"] for call in choice.tool_calls)
    return _quarter(sum(len(str(said)) for said in (choice.content, choice.reasoning, *calls) if said))


def _quarter(count: int) -> int:
    return -(-count // 4)
