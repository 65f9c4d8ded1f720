"""One rollout, done by a service."""

import json
from collections.abc import Mapping
from typing import Any

import aiohttp

from lightning_core.agent.briefing import Briefing, as_json
from lightning_core.errors import Fault, ServiceFailed
from lightning_core.logs.secrets import hide_in_text

_CONNECT_SECONDS = 10.0
_MAX_ANSWER_BYTES = 16 * 1024 * 1024
_SHOWN_CHARACTERS = 1_000


def request_of(briefing: Briefing, attribution_header: str | None) -> dict[str, Any]:
    """Return the body of a request. What there is not has no field.

    Args:
        briefing: What there is to know.
        attribution_header: A header that the proxy knows attempts by; None for its own.
    """
    headers = briefing.headers()
    if attribution_header is not None:
        headers[attribution_header] = briefing.trace_id
    body: dict[str, Any] = {
        "task": briefing.task,
        "rollout_id": briefing.rollout_id,
        "attempt_id": briefing.attempt_id,
        "mode": briefing.mode,
        "headers": headers,
    }
    if briefing.llm is not None:
        body |= {
            "model": briefing.llm.model,
            "base_url": briefing.llm.endpoint,
            "api_key": briefing.key,
            "sampling_parameters": briefing.llm.sampling_parameters,
        }
    if briefing.prompt_template is not None:
        body["prompt_template"] = briefing.prompt_template.template
    prompt = briefing.prompt()
    if prompt is not None:
        body["prompt"] = prompt
    if briefing.report_url is not None:
        body |= {"report_url": briefing.report_url, "report_key": briefing.key}
    return body


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
    return _judged(url, status, answer)


OUT_OF_REACH = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError, ConnectionError)
"""What aiohttp raises when a service cannot be reached, or goes away before its answer has come."""


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


def _judged(url: str, status: int, answer: bytes) -> Any:
    text = answer.decode("utf-8", "replace")
    try:
        value = json.loads(text) if text.strip() else None
    except (ValueError, RecursionError):
        value = text
    if isinstance(value, Mapping) and isinstance(value.get("fault"), str):
        raise Fault(f"the service {url} says that what it needs is out of reach: {_shown(value['fault'])}")
    if not 200 <= status < 300:
        hint = "; give the URL that it leads to" if 300 <= status < 400 else ""
        raise ServiceFailed(f"the service {url} answered {status}{hint}: {_shown(text)}", status=status)
    if isinstance(value, Mapping) and value.get("error") is not None:
        raise ServiceFailed(f"the service {url} answered with an error: {_shown(text)}", status=status)
    return value


def _shown(text: str) -> str:
    text = hide_in_text(text.strip())
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
