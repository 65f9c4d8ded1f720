"""Requests that come one by one, answered in batches; and new weights between two batches."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from lightning_tokens.engine import Generated
from lightning_tokens.sampling import Answer, Sampling

T = TypeVar("T")

_CLOSED = "this server takes no requests until generation is resumed"


class Rejected(RuntimeError):
    """A request came while none is taken."""


class BatchGenerator(Protocol):
    """Answers batches, as `Generator` does."""

    @property
    def context(self) -> int: ...

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, *, is_aborted: Callable[[int], bool]
    ) -> list[Answer]: ...


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer, and which weights gave it."""

    answer: Answer
    version: int | None
    """What `update` said; None before it said anything."""


@dataclass(slots=True, eq=False)
class _Request:
    prompt: Sequence[int]
    sampling: Sampling
    done: "asyncio.Future[Answered]"


class Batcher:
    """Gathers requests into batches: a `TokenEngine`. Belongs to one event loop; the model computes in a thread.

    Args:
        generator: Answers batches.
        max_batch: The most prompts in a batch.
        gather_seconds: How long a batch waits for others that come at the same moment.
        default_max_tokens: The longest answer, where a request does not say.
    """

    def __init__(
        self,
        generator: BatchGenerator,
        *,
        max_batch: int = 64,
        gather_seconds: float = 0.005,
        default_max_tokens: int = 512,
    ) -> None:
        self._generator = generator
        self._max_batch = max_batch
        self._gather_seconds = gather_seconds
        self._default_max_tokens = default_max_tokens
        self._waiting: list[_Request] = []
        self._came = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()
        self._computing = asyncio.Lock()
        self._is_aborted = False
        self._rejects = False
        self.version: int | None = None
        """Which weights it has."""

    async def run(self) -> None:
        """Answer requests until cancelled."""
        while True:
            await self._came.wait()
            await asyncio.sleep(self._gather_seconds)
            await self._open.wait()
            async with self._computing:
                # Closing waits for the lock; who closed since then must not see another batch begin.
                if self._open.is_set():
                    await self._answer(self._next_batch())

    async def ask(self, prompt: Sequence[int], given: Mapping[str, Any]) -> Answered:
        """Return the answer to a prompt.

        Args:
            prompt: Its tokens.
            given: Parameters of sampling; see `Sampling`.

        Raises:
            Rejected: When it was closed so that requests are refused.
            ValueError: When the prompt is empty, is too long, or a parameter is wrong.
        """
        if self._rejects:
            raise Rejected(_CLOSED)
        if not prompt:
            raise ValueError("the prompt has no token")
        room = self._generator.context - len(prompt)
        sampling = Sampling.of(given, room=room, default_max_tokens=self._default_max_tokens)
        request = _Request(prompt, sampling, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self._came.set()
        try:
            return await request.done
        finally:
            if request in self._waiting:
                self._waiting.remove(request)

    async def generate(self, prompt_ids: list[int], sampling: Mapping[str, Any], *, request_id: str) -> Generated:
        """Continue a prompt; see `ask`."""
        answered = await self.ask(prompt_ids, sampling)
        answer, version = answered.answer, answered.version
        end = "abort" if answer.end == "aborted" else answer.end
        return Generated(answer.token_ids, answer.logprobs, end, None if version is None else (version, version))

    async def close(self, *, abort: bool = False, reject: bool = False) -> None:
        """Let requests wait, and return when none is computed any more.

        Args:
            abort: Whether those that are computed end with what there is.
            reject: Whether those that wait, and further ones, are refused instead.
        """
        self._open.clear()
        self._is_aborted = abort
        self._rejects = reject
        if reject:
            for request in self._waiting:
                if not request.done.done():
                    request.done.set_exception(Rejected(_CLOSED))
        async with self._computing:
            self._is_aborted = False

    def open(self) -> None:
        """Take requests, also those that wait."""
        self._rejects = False
        self._open.set()

    async def update(self, change: Callable[[], T], version: int | None) -> T:
        """Change the weights between two batches, in a thread; return what the change returns.

        Args:
            change: Changes them.
            version: What they are called then.
        """
        async with self._computing:
            found = await asyncio.to_thread(change)
            self.version = version
        return found

    def _next_batch(self) -> list[_Request]:
        """Take the oldest requests that are sampled in the same way."""
        self._waiting = [request for request in self._waiting if not request.done.done()]
        first = self._waiting[0].sampling if self._waiting else None
        batch = [request for request in self._waiting if request.sampling == first][: self._max_batch]
        self._waiting = [request for request in self._waiting if request not in batch]
        if not self._waiting:
            self._came.clear()
        return batch

    async def _answer(self, batch: list[_Request]) -> None:
        if not batch:
            return
        version, prompts = self.version, [request.prompt for request in batch]
        try:
            answers = await asyncio.to_thread(
                self._generator.generate,
                prompts,
                batch[0].sampling,
                is_aborted=lambda number: self._is_aborted or batch[number].done.done(),  # whose caller is gone
            )
        except Exception as exc:
            for request in batch:
                if not request.done.done():
                    request.done.set_exception(exc)
            return
        for request, answer in zip(batch, answers, strict=True):
            if not request.done.done():
                request.done.set_result(Answered(answer, version))
