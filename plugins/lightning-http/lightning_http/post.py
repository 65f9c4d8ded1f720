"""One request to a service: JSON there and back, and what its errors mean for a rollout."""

import json
from collections.abc import Mapping
from typing import Any

import aiohttp
from pydantic_core import PydanticSerializationError, to_json

from lightning_core.errors import Fault, InvalidTask, ServiceFailed
from lightning_core.secrets import hide_in_text
from lightning_core.texts import cut

_CONNECT_SECONDS = 10.0
_MAX_ANSWER_BYTES = 16 * 1024 * 1024
_MAX_SHOWN_CHARACTERS = 1_000

OUT_OF_REACH = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError, ConnectionError)
"""What aiohttp raises when a service cannot be reached, or goes away before its answer has come."""


def as_json(task: Any) -> bytes:
    """Return a task, or a part of one, as JSON.

    Raises:
        InvalidTask: When it has a value that JSON cannot hold.
    """
    try:
        return to_json(task)
    except (PydanticSerializationError, ValueError) as exc:
        raise InvalidTask(
            f"the task cannot be written as JSON: {exc}; give it as texts, numbers, lists and mappings"
        ) from exc


async def post(url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
    """Send a request, and return the answer's JSON; its text where it is none, and None where it is empty.

    Raises:
        Fault: When the service cannot be reached, or goes away before it has answered, or says that it is at fault.
        ServiceFailed: When it answers with an error, or with too much.
    """
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
    sent = {**headers, "content-type": "application/json"}
    try:
        # A connection of its own: one that was kept could be closed by the service just when a request begins.
        async with (
            aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.post(url, data=as_json(body), headers=sent, allow_redirects=False) as response,
        ):
            status, answer = response.status, await _read(url, response)
    except OUT_OF_REACH as exc:
        raise out_of_reach(url, exc) from exc
    except aiohttp.ClientError as exc:
        raise ServiceFailed(f"the service {url} answered with no HTTP: {exc or type(exc).__name__}") from exc
    text = answer.decode("utf-8", "replace")
    try:
        value = json.loads(text) if text.strip() else None
    except (ValueError, RecursionError):
        value = text
    check_answer(url, value, text, status)
    return value


def out_of_reach(url: str, error: BaseException) -> Fault:
    """Say that a service cannot be reached."""
    return Fault(f"the service {url} is out of reach: {error or type(error).__name__}")


async def _read(url: str, response: aiohttp.ClientResponse) -> bytes:
    answer = bytearray()
    async for piece in response.content.iter_any():
        answer += piece
        if len(answer) > _MAX_ANSWER_BYTES:
            raise ServiceFailed(
                f"the service {url} answered with more than {_MAX_ANSWER_BYTES} bytes", status=response.status
            )
    return bytes(answer)


def check_answer(url: str, value: Any, text: str, status: int | None = None) -> None:
    """Raise what an answer says went wrong.

    Args:
        url: Of the service.
        value: The answer.
        text: The answer as the message shows it.
        status: Of the HTTP response; None where that is not known.

    Raises:
        Fault: When what the service needs is out of reach.
        ServiceFailed: When it answers with an error.
    """
    answer = value if isinstance(value, Mapping) else {}
    if isinstance(answer.get("fault"), str):
        raise Fault(f"the service {url} says that what it needs is out of reach: {_shown(answer['fault'])}")
    if status is not None and not 200 <= status < 300:
        hint = "; give the URL that it leads to" if 300 <= status < 400 else ""
        raise ServiceFailed(f"the service {url} answered {status}{hint}: {_shown(text)}", status=status)
    if answer.get("error") is not None:
        raise ServiceFailed(f"the service {url} answered with an error: {_shown(text)}", status=status)


def _shown(text: str) -> str:
    return cut(hide_in_text(text.strip()), _MAX_SHOWN_CHARACTERS)
