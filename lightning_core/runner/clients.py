"""What the clients of models raise when a model gives no answer, and how long to wait before it is asked again."""

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

from lightning_core.adapter.genai import TRANSIENT_STATUSES
from lightning_core.errors import Fault, LightningError

PATIENCE_SECONDS = 60.0
"""How long rate limits and outages of a model are waited out before they count."""

_TIMEOUTS, _OUT_OF_REACH = "its timeout", "out of reach"

_GENERATED = {"APITimeoutError": _TIMEOUTS, "APIConnectionError": _OUT_OF_REACH}
_HTTPX = {"TimeoutException": _TIMEOUTS, "NetworkError": _OUT_OF_REACH, "RemoteProtocolError": _OUT_OF_REACH}

CLIENTS: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(("openai", "anthropic", "groq", "together", "cerebras"), _GENERATED),
    **dict.fromkeys(("httpx", "httpx2"), _HTTPX),
    "requests": {"Timeout": _TIMEOUTS, "ConnectionError": _OUT_OF_REACH},
    "aiohttp": {"ServerTimeoutError": _TIMEOUTS, "ClientConnectionError": _OUT_OF_REACH},
    "botocore": {
        **dict.fromkeys(("ReadTimeoutError", "ConnectTimeoutError"), _TIMEOUTS),
        **dict.fromkeys(("ConnectionError", "HTTPClientError"), _OUT_OF_REACH),
    },
    "azure": {
        **dict.fromkeys(("ServiceRequestTimeoutError", "ServiceResponseTimeoutError"), _TIMEOUTS),
        **dict.fromkeys(("ServiceRequestError", "ServiceResponseError"), _OUT_OF_REACH),
    },
    "huggingface_hub": {"InferenceTimeoutError": _TIMEOUTS},
    **{client: {} for client in ("litellm", "google", "mistralai", "cohere", "ollama", "replicate")},
}
"""By the first part of a module's name, which of a client's exceptions say that there was no HTTP answer, and why.

Those with the status of an answer need no name. litellm derives its own from openai's. Built-in errors, such as
`ConnectionError`, are not here: they may come from anything that an agent talks to.
"""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """A model gave no answer, and may give one later."""

    asked_seconds: float | None = None
    """The wait that it asks for."""
    is_out_of_reach: bool = False
    """Whether it was not reached: as where the URL is wrong."""
    is_final: bool = False
    """Whether it says that another try does not help: as where a quota is used up."""

    def pause_seconds(self, attempt: int) -> float:
        """Return how long to wait after the nth attempt: as long as it asks for, and longer each time.

        Three pauses are a little longer than `PATIENCE_SECONDS`, and none is longer than that by more than a fourth.
        After the fourth fault a rollout is lost, and there is none.
        """
        if attempt > 3:
            return 0.0
        growing = PATIENCE_SECONDS / 30 * 5.0 ** min(attempt - 1, 10)
        seconds = min(max(self.asked_seconds or 0.0, growing), PATIENCE_SECONDS)
        return seconds * random.uniform(1.0, 1.25)  # so that those refused together do not come again together


def find_no_answer(error: BaseException | None) -> NoAnswer | None:
    """Return what an error says of a model that gave no answer; None where it says nothing of the kind.

    An error that was raised from one which does says so, too: frameworks have their own. A group does if all of its
    errors do.
    """
    if isinstance(error, BaseExceptionGroup):
        found = [find_no_answer(each) for each in error.exceptions]
        return None if None in found else found[0]
    while error is not None:
        if isinstance(error, Fault) and error.retry_after is not None:
            return NoAnswer(error.retry_after)
        if isinstance(error, LightningError) and type(error) is not Fault:
            return None  # it was found to be something else, such as a store that is away, or an agent's own 500
        kinds = [kind for kind in type(error).__mro__ if kind.__module__.partition(".")[0] in CLIENTS]
        named = {CLIENTS[kind.__module__.partition(".")[0]].get(kind.__name__) for kind in kinds}
        if named & {_TIMEOUTS, _OUT_OF_REACH}:
            return NoAnswer(is_out_of_reach=_TIMEOUTS not in named)
        if kinds and _status(error) in TRANSIENT_STATUSES:
            return NoAnswer(asked_seconds(partial(_header, error)), is_final=_is_final(error))
        error = error.__cause__
    return None


def asked_seconds(header: Callable[[str], str | None]) -> float | None:
    """Return the wait that an answer asks for: milliseconds, seconds or a date; None for none.

    Args:
        header: Returns a header of the answer by its lower-case name.
    """
    milliseconds, asked = _number(header("retry-after-ms")), header("retry-after")
    seconds = _number(asked) if milliseconds is None else milliseconds / 1000
    if seconds is None and asked:
        with suppress(ValueError):
            seconds = parsedate_to_datetime(asked).timestamp() - time.time()
    return seconds if seconds is not None and seconds > 0 else None


def _number(text: str | None) -> float | None:
    with suppress(ValueError):
        if text and math.isfinite(number := float(text)) and number >= 0:
            return number
    return None


def _answers(error: BaseException) -> Iterator[Any]:
    """Yield what has the status and the headers of an answer, by what clients call it."""
    yield error
    response = getattr(error, "response", None)
    yield response
    if isinstance(response, Mapping):  # botocore's
        yield response.get("ResponseMetadata")


def _status(error: BaseException) -> int | None:
    for answer in _answers(error):
        for name in ("status_code", "status", "code", "HTTPStatusCode"):
            value = answer.get(name) if isinstance(answer, Mapping) else getattr(answer, name, None)
            if isinstance(value, int):
                return value
    return None


def _header(error: BaseException, name: str) -> str | None:
    for answer in _answers(error):
        headers = answer.get("HTTPHeaders") if isinstance(answer, Mapping) else getattr(answer, "headers", None)
        if isinstance(headers, Mapping) and (value := headers.get(name)) is not None:
            return str(value)
    return None


def _is_final(error: BaseException) -> bool:
    details = (error.args, getattr(error, "body", None))
    return _header(error, "x-should-retry") == "false" or "insufficient_quota" in str(details)
