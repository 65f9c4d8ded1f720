"""One call of an agent, from its HTTP request to its span.

A call passes these files, in this order:

1. `engine.py` makes the `Call` of a request (`request.py`): whose it is and whether it may be made (`owner.py`,
   `paths.py`), and which API it speaks (`apis/`).
2. `limiter.py` lets it start: in its turn, and not during a pause; `spending.py`: within the budget and the limits of
   its attempt.
3. `dispatch.py` sets the parameters of its model (`model_list.py`), sends it to a replica (`replicas.py`) through its
   backend (`openai_backend.py`), and tries again, or another model. The API makes it a call of chat, and
   its answer one of its own, where the replica needs that.
4. `relay.py` hands the answer to the agent, whole or piece by piece, and has the dialect read it.
5. `engine.py` counts what it used; `spans.py` makes its span, which `outbox.py` brings to the store.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from lightning_http.auth import Role
from lightning_http.body import ClientGone

from lightning_proxy.answer import Answer, AnswerChoice, tool_call_part
from lightning_proxy.apis import Dialect
from lightning_proxy.owner import Owner
from lightning_proxy.replicas import Replica
from lightning_proxy.request import Refused, Request, proxy_stopped

_WATCH_AFTER_SECONDS = 0.05
"""After how long an agent that gets its answer in one piece is watched for hanging up."""


@dataclass(slots=True, eq=False)
class Call:
    """What is known of a call. Times are in seconds since the epoch, durations are by a monotonic clock."""

    request: Request
    path: str
    """Below the URL of its attempt; once it is routed, below `/v1`."""
    owner: Owner | None
    """The attempt that it belongs to; None for a call that belongs to none."""
    role: Role
    """What the key of the caller opens."""
    may_manage: bool = False
    """Whether the caller may change what the backend has and serves: it has the algorithm's key."""
    purpose: str | None = None
    """What it is for, where the agent itself does not make it: `judge`."""
    parent: tuple[str, str] | None = None
    """The trace id and the span id that the agent's call is part of, where it says so."""

    dialect: Dialect | None = None
    """The API that it speaks; None for a call that passes through as it is, and is not recorded."""
    body: bytes = b""
    fields: dict[str, Any] | None = None
    """The body, read, with the parameters of its model; None where it is not a JSON object. Not to be changed."""
    target: str | None = None
    """The name of the model list that it is for now: what the agent asks for, or what that stands for."""
    pinned: Replica | None = None
    """The only replica that can answer it; None for any of its model."""
    is_free: bool = False
    """Whether a budget does not count it."""
    is_management: bool = False
    """Whether it manages the backend: then it is not a model call, and no pause holds it."""

    began: float = 0.0
    duration: float = 0.0
    first_chunk_seconds: float | None = None
    """From its beginning to the first piece of a stream."""
    size: int = 0
    """About how many bytes its span holds."""
    tries: int = 0
    dropped_tools: Sequence[str] = ()
    """The types of tools that the agent offers, and that the model's engine does not have."""
    fell_back: bool = False
    """Whether another model is asked than the one that it was for."""
    abandoned_tokens: int = 0
    """What models may have used that were given up for another one: an estimate."""
    abandoned_cost: float = 0.0
    """The same in US dollars, where there are prices."""
    replica: Replica | None = None
    """Where it was sent last."""
    is_sent: bool = False
    """Whether a backend may have worked on it; False again after a try that was not answered."""
    is_refused: bool = False
    """Whether the backend answered with an error, and so used nothing."""
    weight_version: str | None = None
    """When it was sent, or the oldest that the backend says it was answered with."""
    last_weight_version: str | None = None
    """When it ended, or the newest that the backend says."""
    answer: Answer = field(default_factory=Answer)
    is_answered: bool = False
    """Whether the agent got the complete answer of a stream, if not all of the stream."""
    status: int = 0
    """The HTTP status that the agent got; 0 for none."""
    error_kind: str | None = None
    error: str | None = None
    error_code: str | None = None
    """The backend's name for the error."""
    cost: float | None = None
    """US dollars; None where it is not known."""
    _started: float = 0.0

    @property
    def model(self) -> str | None:
        """The model that the agent asks for; None where it names none."""
        model = self.fields.get("model") if self.fields is not None else None
        return model if isinstance(model, str) else None

    @property
    def attempt_id(self) -> str | None:
        """Whose calls go to the same replica."""
        return None if self.owner is None else self.owner.attempt_id

    @property
    def is_stream(self) -> bool:
        """Whether the agent asks for the answer in pieces."""
        return self.fields is not None and self.fields.get("stream") is True

    def begin(self) -> None:
        """Record that it begins now."""
        self.began, self._started = time.time(), time.perf_counter()

    def seconds(self) -> float:
        """Return how long ago it began."""
        return time.perf_counter() - self._started

    def fail(self, kind: str, message: str) -> None:
        """Record an error; the first one stays."""
        if self.error_kind is None:
            self.error_kind, self.error = kind, message

    @property
    def input_tokens(self) -> int | None:
        """How many tokens went in, by the backend's count or their ids; None where it is not known."""
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

    def estimated_tokens(self) -> tuple[int, int]:
        """Return how many tokens went in and out, as a budget counts them.

        What is not known is estimated: a token for 4 bytes of the request, and for 4 characters of the answer so far.
        """
        given, taken = self.input_tokens, self.output_tokens
        if given is None:
            given = _quarter(len(self.body))
        if taken is None or self.error_kind is not None:  # the usage that a broken stream gave is not the last
            taken = max(taken or 0, sum(map(_received_tokens, self.answer.choices)))
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
        call: The call, whose body was read. An agent that gets pieces is watched from the beginning; any other only if
            the call takes longer than a moment.

    Raises:
        Refused: When the block was cancelled, or the server stops.
        ClientGone: When the agent is gone.
    """

    def __init__(self, call: Call) -> None:
        self._request = call.request
        self._watches_at_once = call.is_stream or call.dialect is None
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._cause: Exception | None = None
        self._is_open = False
        self._timer: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None

    def abort(self, reason: str) -> None:
        """Cancel the block; the agent gets an error that says to try again. Does nothing once it has ended."""
        self._cancel(Refused(503, "call_aborted", f"the call was cut off: {reason}", retry_after=1.0))

    async def __aenter__(self) -> Self:
        if self._watches_at_once:
            self._watch()
        else:
            self._timer = self._loop.call_later(_WATCH_AFTER_SECONDS, self._watch)
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = False
        task, self._task = self._task, None  # the outbox keeps `abort` for a while, which need not keep the task
        if self._timer is not None:
            self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()
        if isinstance(error, asyncio.CancelledError):
            if self._cause is not None and task is not None and task.uncancel() == 0:
                raise self._cause from None
            self._request.hurry()
            raise proxy_stopped() from None  # only the server cancels requests otherwise, when it stops

    def _watch(self) -> None:
        self._watching = self._loop.create_task(self._wait_closed(), name="hang-up of an agent")

    async def _wait_closed(self) -> None:
        await self._request.wait_closed()
        if not self._request.is_done:  # the server says the same of a complete answer
            self._cancel(ClientGone())

    def _cancel(self, cause: Exception) -> None:
        if self._is_open and self._cause is None and self._task is not None:
            self._cause = cause
            self._task.cancel()
