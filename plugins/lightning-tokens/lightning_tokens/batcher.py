"""Requests that come one by one, answered in batches; and new weights between two batches."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from lightning_tokens.engine import Generated

T = TypeVar("T")

_CLOSED = "this server takes no requests until generation is resumed"


class Rejected(RuntimeError):
    """A request came while none is taken."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """What decides how tokens are drawn. Requests with the same go into one batch."""

    temperature: float = 1.0
    """0 takes the likeliest token."""
    top_p: float = 1.0
    """The share of the probability that is drawn from."""
    top_k: int = 0
    """How many tokens are drawn from; 0 for all."""
    max_tokens: int = 16
    """The longest answer."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer; they are part of its tokens."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end an answer, besides the model's own."""
    ignore_eos: bool = False
    """Whether the model's own tokens do not end its answer."""

    @classmethod
    def of(cls, given: Mapping[str, Any], *, room: int, default_max_tokens: int) -> "Sampling":
        """Read parameters; what is not among the fields here has no effect.

        Args:
            given: By vLLM's names, or OpenAI's.
            room: How many tokens fit behind the prompt.
            default_max_tokens: The longest answer by default.

        Raises:
            ValueError: When the prompt leaves no room, or a number is out of its range.
        """
        if room < 1:
            raise ValueError("the prompt fills the model's context, nothing can be sampled behind it")
        temperature, top_p = _number(given, "temperature", 1.0), _number(given, "top_p", 1.0)
        if temperature < 0 or not 0 < top_p <= 1:
            raise ValueError(f"temperature is at least 0 and top_p in (0, 1]; got {temperature} and {top_p}")
        stop = given.get("stop") or ()
        return cls(
            temperature=temperature,
            top_p=top_p,
            top_k=max(0, int(_number(given, "top_k", 0))),
            max_tokens=max(1, min(int(_number(given, "max_tokens", default_max_tokens)), room)),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            stop_token_ids=tuple(given.get("stop_token_ids") or ()),
            ignore_eos=bool(given.get("ignore_eos")),
        )


def _number(given: Mapping[str, Any], name: str, default: float) -> float:
    value = given.get(name)
    return default if value is None else float(value)


class BatchGenerator(Protocol):
    """Answers batches, as `Generator` does."""

    @property
    def context(self) -> int: ...

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, *, is_aborted: Callable[[int], bool]
    ) -> list[Generated]: ...


@dataclass(slots=True, eq=False)
class _Request:
    prompt: Sequence[int]
    sampling: Sampling
    done: "asyncio.Future[Generated]"


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

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Mapping[str, Any], *, request_id: str = ""
    ) -> Generated:
        """Continue a prompt.

        Args:
            prompt_ids: Its tokens.
            sampling: See `Sampling`.
            request_id: Has no effect.

        Raises:
            Rejected: When it was closed so that requests are refused.
            ValueError: When the prompt is empty, is too long, or a parameter is wrong.
        """
        if self._rejects:
            raise Rejected(_CLOSED)
        if not prompt_ids:
            raise ValueError("the prompt has no token")
        room = self._generator.context - len(prompt_ids)
        options = Sampling.of(sampling, room=room, default_max_tokens=self._default_max_tokens)
        request = _Request(prompt_ids, options, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self._came.set()
        try:
            return await request.done
        finally:
            if request in self._waiting:
                self._waiting.remove(request)

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
            result = await asyncio.to_thread(change)
            self.version = version
        return result

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
        versions = None if self.version is None else (self.version, self.version)
        prompts = [request.prompt for request in batch]
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
                request.done.set_result(replace(answer, weight_versions=versions))
