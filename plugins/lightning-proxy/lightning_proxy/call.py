"""One call of an agent as three values: what was asked, how it is sent, and how it ended.

A call passes these files, in this order:

1. `app.py` finds out whose an HTTP request (`request.py`) is (`owner.py`), and `reader.py` reads its `Call`: whether it
   may be made (`paths.py`), which API it speaks (`apis/`), and the parameters of its model (`models.py`).
2. Admit: `admit.py` lets it start, in its turn, not during a pause, within the budget and the limits of its attempt.
3. Send: `send.py` sends it to a replica (`replicas.py`) through its backend (`openai_backend.py`), and tries again.
   The API makes it a call of chat, and its answer one of its own, where the replica needs that. `relay.py` hands the
   answer to the agent, whole or piece by piece, and has it read.
4. Settle: `app.py` counts what it used; `spans.py` makes its span, which `outbox.py` brings to the store.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from lightning_http.body import ClientGone

from lightning_proxy.answer import Answer, AnswerChoice, tool_call_part
from lightning_proxy.apis import Dialect
from lightning_proxy.owner import Owner
from lightning_proxy.replicas import Replica
from lightning_proxy.request import Request, proxy_stopped, unavailable


@dataclass(slots=True)
class Route:
    """How a call is sent."""

    target: str | None = None
    """The name of the model list that it is for: what the agent asks for, or what that stands for."""
    body: bytes = b""
    fields: dict[str, Any] | None = None
    """What was asked, with the parameters of its model; None where it is not a JSON object. Not to be changed."""
    replica: Replica | None = None
    """Where it was sent last."""
    tries: int = 0
    dropped_tools: Sequence[str] = ()
    """The types of tools that the agent offers, and that the model's engine does not have."""
    ignored: Sequence[str] = ()
    """The names of the parameters that its backend answered it without."""
    is_sent: bool = False
    """Whether a backend may have worked on it; False again after a try that was not answered."""
    weight_version: str | None = None
    """When it was sent, or the oldest that the backend says it was answered with."""
    last_weight_version: str | None = None
    """When it ended, or the newest that the backend says."""


@dataclass(slots=True)
class Outcome:
    """How a call ended."""

    answer: Answer = field(default_factory=Answer)
    status: int = 0
    """The HTTP status that the agent got; 0 for none."""
    is_answered: bool = False
    """Whether the agent got the complete answer of a stream, if not all of the stream."""
    is_refused: bool = False
    """Whether the backend answered with an error, and so used nothing."""
    error_kind: str | None = None
    error: str | None = None
    error_code: str | None = None
    """The backend's name for the error."""
    cost: float | None = None
    """US dollars; None where it is not known."""
    size: int = 0
    """How many bytes came as an answer."""
    first_chunk_seconds: float | None = None
    """From the call's beginning to the first piece of a stream."""
    seconds: float = 0.0
    """From its beginning to its end."""

    def fail(self, kind: str, message: str) -> None:
        """Record an error; the first one stays."""
        if self.error_kind is None:
            self.error_kind, self.error = kind, message


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """What an agent asked."""

    request: Request
    path: str
    """Below `/v1`, quoted."""
    owner: Owner | None = None
    """The attempt that it belongs to; None for a call that belongs to none."""
    purpose: str | None = None
    """What it is for, where the agent itself does not make it: `judge`."""
    parent: tuple[str, str] | None = None
    """The trace id and the span id that the agent's call is part of, where it says so."""
    dialect: Dialect | None = None
    """The API that it speaks; None for a call that passes through as it is, and is not recorded."""
    is_stream: bool = False
    """Whether the agent asks for the answer in pieces."""
    model: str | None = None
    """The model that the agent asks for; None where it names none."""
    pinned: Replica | None = None
    """The only replica that can answer it; None for any of its model."""
    is_free: bool = False
    """Whether a budget does not count it."""
    is_management: bool = False
    """Whether it manages the backend: then it is not a model call, and no pause holds it."""
    began: float = field(default_factory=time.time)
    """In seconds since the epoch."""
    started: float = field(default_factory=time.perf_counter)
    """The same by a monotonic clock."""
    route: Route = field(default_factory=Route)
    outcome: Outcome = field(default_factory=Outcome)

    @property
    def attempt_id(self) -> str | None:
        """Whose calls go to the same replica."""
        return None if self.owner is None else self.owner.attempt_id

    def seconds(self) -> float:
        """Return how long ago it began."""
        return time.perf_counter() - self.started

    def known_tokens(self) -> tuple[int | None, int | None]:
        """Return how many tokens went in and out, by the backend's count or their ids; None where it is not known."""
        answer = self.outcome.answer
        given, taken = answer.input_tokens, answer.output_tokens
        if answer.prompt_token_ids is not None:  # a stream that was broken off has no usage, but ids
            given = len(answer.prompt_token_ids) if given is None else given
            taken = sum(len(choice.token_ids or ()) for choice in answer.choices) if taken is None else taken
        return given, taken

    def estimated_tokens(self) -> tuple[int, int]:
        """Return how many tokens went in and out, as a budget counts them.

        What is not known is estimated: a token for 4 bytes of the request, and for 4 characters of the answer so far.
        """
        given, taken = self.known_tokens()
        if given is None:
            given = _quarter(len(self.route.body))
        if taken is None or self.outcome.error_kind is not None:  # the usage that a broken stream gave is not the last
            taken = max(taken or 0, sum(map(_received_tokens, self.outcome.answer.choices)))
        return given, taken


def _received_tokens(choice: AnswerChoice) -> int:
    if choice.token_ids is not None:
        return len(choice.token_ids)
    arguments = (tool_call_part(call)["arguments"] for call in choice.tool_calls)
    return _quarter(sum(len(str(text)) for text in (choice.content, choice.reasoning, *arguments) if text))


def _quarter(count: int) -> int:
    return -(-count // 4)


class CancelScope:
    """A block, in the task that answers a call, which `abort` cancels, and the agent by hanging up.

    Args:
        call: The call, whose body was read.

    Raises:
        Refused: When the block was cancelled, or the server stops.
        ClientGone: When the agent is gone.
    """

    def __init__(self, call: Call) -> None:
        self._request = call.request
        self._task = asyncio.current_task()
        self._cause: Exception | None = None
        self._is_open = False
        self._watching: asyncio.Task[None] | None = None

    def abort(self, reason: str) -> None:
        """Cancel the block; the agent gets an error that says to try again. Does nothing once it has ended."""
        self._cancel(unavailable("call_aborted", f"the call was cut off: {reason}"))

    async def __aenter__(self) -> Self:
        self._watching = asyncio.create_task(self._wait_closed(), name="hang-up of an agent")
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = False
        task, self._task = self._task, None  # the outbox keeps `abort` for a while, which need not keep the task
        if self._watching is not None:
            self._watching.cancel()
        if isinstance(error, asyncio.CancelledError):
            if self._cause is not None and task is not None and task.uncancel() == 0:
                raise self._cause from None
            self._request.hurry()
            raise proxy_stopped() from None  # only the server cancels requests otherwise, when it stops

    async def _wait_closed(self) -> None:
        await self._request.wait_closed()
        if not self._request.is_done:  # the server says the same of a complete answer
            self._cancel(ClientGone())

    def _cancel(self, cause: Exception) -> None:
        if self._is_open and self._cause is None and self._task is not None:
            self._cause = cause
            self._task.cancel()
