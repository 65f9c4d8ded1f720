"""What answers model calls: the narrow port that an engine, a provider or an object in this process implements."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lightning_core.errors import ProxyError

VARIABLE = "os.environ/"
"""Begins the value of an option that is in an environment variable, as LiteLLM has it."""

_RETRY_HEADERS = frozenset({"retry-after", "retry-after-ms", "x-should-retry"})
_RATE_LIMITS = ("x-ratelimit-", "anthropic-ratelimit-", "ratelimit")


def is_retry_header(name: str) -> bool:
    """Whether a header of this lower-case name says when to call again, or how much may be asked for until then."""
    return name in _RETRY_HEADERS or name.startswith(_RATE_LIMITS)


class BackendUnavailable(ProxyError):
    """The backend could not be reached, or went away before it answered anything; another try is safe."""


class BackendTimeout(ProxyError):
    """The backend did not answer in time. It may still be at it, so the call is not tried again."""


class BackendBroke(ProxyError):
    """The backend went away in the middle of an answer."""


@dataclass(frozen=True, slots=True)
class BackendRequest:
    """One call, as a backend gets it."""

    method: str
    path: str
    """Below `/v1`, such as `/chat/completions`; quoted."""
    query: str = ""
    """Without the question mark."""
    headers: Sequence[tuple[str, str]] = ()
    """Of the content only: no key, no cookie, nothing of the agent's connection."""
    body: bytes = b""
    fields: dict[str, Any] | None = field(default=None, repr=False)
    """The body's JSON object, where it is one and was read. Not to be changed."""
    attempt: str | None = None
    """Says which calls belong together; None for a call of no attempt."""


class BackendAnswer(ABC):
    """An answer that has begun. Its holder closes it."""

    status: int
    """The HTTP status."""
    headers: Sequence[tuple[str, str]]
    """Those that tell about the content, such as `content-type`, and about other tries, such as `retry-after`."""
    weight_versions: tuple[int, int] | None = None
    """The oldest and the newest weights that it was sampled with, once it was read; None where the backend does not
    say: then the proxy takes those that it was told of."""
    ignored: Sequence[str] = ()
    """The names of the parameters that the call has, and that it was answered without."""

    @abstractmethod
    async def read(self) -> bytes:
        """Return the whole body.

        Raises:
            BackendBroke: When it does not come to its end.
            BackendTimeout: When it takes too long.
        """

    @abstractmethod
    def pieces(self) -> AsyncIterator[bytes]:
        """Return the body as it comes; what is not asked for is not read ahead without limit.

        Raises:
            BackendBroke: When it does not come to its end.
            BackendTimeout: When it takes too long.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of the answer; one that has not ended is cancelled at the backend. Idempotent."""

    def header(self, name: str) -> str:
        """Return a header by its lower-case name; empty where it is not there."""
        return next((value for known, value in self.headers if known.lower() == name), "")


class WholeAnswer(BackendAnswer):
    """An answer that is there."""

    def __init__(self, status: int, body: bytes, headers: Sequence[tuple[str, str]] = ()) -> None:
        self.status = status
        self.headers = headers or (("content-type", "application/json"),)
        self._body = body

    async def read(self) -> bytes:
        return self._body

    async def pieces(self) -> AsyncIterator[bytes]:
        yield self._body

    async def aclose(self) -> None:
        """There is nothing to let go of."""


class TokenCounts(NamedTuple):
    """How many tokens a call used; None where it is not known."""

    input: int | None = None
    """Of the prompt, cached ones included."""
    output: int | None = None
    cached: int | None = None
    """Of the prompt, those that the backend had in its prefix cache."""
    written: int | None = None
    """Of the prompt, those that the provider wrote to its cache."""
    written_for_an_hour: int | None = None
    """Of these, those that stay there for an hour."""


class Backend(ABC):
    """What answers the calls of one entry of the model list.

    It lives in the proxy's event loop, and serves any number of calls at once. Cancelling `send` cancels the call.
    """

    gives_tokens: bool = False
    """Whether it answers `return_token_ids`, so that calls can be trained on: then the proxy asks for it."""
    chat_only: bool = False
    """Whether of the APIs for conversations it speaks chat alone: the proxy then turns the others into that."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Say where it is, for people, without keys."""

    def cost(self, tokens: TokenCounts) -> float | None:
        """Return what a call costs, in US dollars, where the model list gives no prices; None where it is not known."""
        return None

    @abstractmethod
    async def send(self, request: BackendRequest) -> BackendAnswer:
        """Make a call, and return its answer as soon as that begins.

        Raises:
            BackendUnavailable: When another try is safe.
            BackendTimeout: When it did not answer in time.
            BackendBroke: When it went away, and another try may not be safe.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of connections. Calls under way fail."""
