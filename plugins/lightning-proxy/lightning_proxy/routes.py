"""The routes of a proxy besides model calls: reports and the end of an attempt, and how the proxy stands."""

from typing import Any

from lightning_http.auth import Role

from lightning_core.adapter import read_model_calls
from lightning_core.emitter import emit_annotation, emit_reward
from lightning_core.registry import did_you_mean
from lightning_core.rewards import as_reported
from lightning_core.types import ProxyLLM, Span, SpanCoreFields
from lightning_core.types.text import hide_attempt_keys
from lightning_proxy.jsons import parse_object
from lightning_proxy.reader import Caller
from lightning_proxy.request import Refused, Request
from lightning_proxy.service import ProxyService

REPORT_PATH = "/report"

_MAX_REPORT_BYTES = 256 * 1024
_FIELDS = ("reward", "annotation")
_EXAMPLE = '{"reward": 1.0}, {"reward": {"right": 1, "short": 0.5}} or {"annotation": {"tool": "search"}}'


def report_url(llm: ProxyLLM, rollout_id: str, attempt_id: str) -> str:
    """Return where an attempt reports."""
    return llm.get_base_url(rollout_id, attempt_id).removesuffix("/v1") + REPORT_PATH


def _read(fields: dict[str, Any] | None) -> list[SpanCoreFields]:
    if not fields:
        raise Refused(400, "invalid_report", f"the report is not a JSON object with something in it; send {_EXAMPLE}")
    unknown = next((name for name in fields if name not in _FIELDS), None)
    if unknown is not None:
        hint = did_you_mean(unknown, _FIELDS)
        raise Refused(400, "invalid_report", f"a report has no field {unknown!r}; send {_EXAMPLE}{hint}")
    made = []
    try:
        if "annotation" in fields:
            made.append(emit_annotation(fields["annotation"], propagate=False))
        if "reward" in fields:
            made.append(emit_reward(fields["reward"], propagate=False))
    except (TypeError, ValueError, RecursionError) as exc:
        raise Refused(400, "invalid_report", f"the report cannot be taken: {exc}") from exc
    return made


def _cannot_be_cut_off(reason: str) -> None:
    """Do nothing: a report has ended when it has begun."""


FLUSH_PATH = "/flush"
STATUS_PATH = "/control/status"

_MAX_FLUSH_BYTES = 1024


async def serve_control(service: ProxyService, request: Request, path: str, caller: Caller) -> bool:
    """Answer a request that asks how the proxy stands, or reports on an attempt; return whether it was one.

    - `POST /rollout/{rollout_id}/attempt/{attempt_id}/flush`: answers when the store has the attempt's calls; also with
      the attempt's own key, as runners do;
    - `POST /rollout/{rollout_id}/attempt/{attempt_id}/report`: a reward or an annotation; of a live attempt, which goes
      to the store with the model calls, in the order in which they came;
    - `GET /control/status`: how the proxy stands; with the algorithm's key only, where there are keys.

    Args:
        service: The proxy.
        request: The request.
        path: Its path below the URL of its attempt.
        caller: Who makes it.

    Raises:
        Refused: When the caller may not, or asks for what there is not.
    """
    if request.method == "POST" and path == REPORT_PATH:
        await _report(service, request, caller)
        return True
    if request.method == "POST" and path == FLUSH_PATH and caller.owner is not None:
        fields = parse_object(await request.read_body(_MAX_FLUSH_BYTES) or b"{}")
        if fields is None:
            raise Refused(400, "invalid_json", "the request's body is not a JSON object")
        await service.flush(caller.owner, fields.get("end") is not False)
        await request.respond(204, b"", ())
        return True
    if request.method != "GET" or path != STATUS_PATH:
        return False
    if caller.role < Role.ALGORITHM:
        raise Refused(403, "not_allowed", "this key is not the algorithm's, so it is not told how the proxy stands")
    await request.respond_json(200, service.status())
    return True


async def _report(service: ProxyService, request: Request, caller: Caller) -> None:
    """Answer a report. From then on it is in the outbox: the end of the attempt waits until it is stored.

    Raises:
        Refused: When the attempt is not live, or the report is none.
    """
    owner = caller.owner
    if owner is None:
        message = "the report belongs to no attempt: use the URL, or the key, that its agent was given"
        raise Refused(403, "unattributed", message)
    await service.attempts.require(owner, has_key=caller.role == Role.ATTEMPT)
    service.outbox.require_room()
    body = await request.read_body(_MAX_REPORT_BYTES)
    spans = [
        as_reported(Span.from_core_fields(made, rollout_id=owner.rollout_id, attempt_id=owner.attempt_id))
        for made in _read(parse_object(hide_attempt_keys(body.decode("utf-8", "replace")).encode()))
    ]
    if read_model_calls(spans):
        raise Refused(400, "invalid_report", "an annotation cannot stand for a model call; name its fields otherwise")
    service.attempts.require_not_ended(owner)  # the body took its time
    for span in spans:
        service.outbox.end(service.outbox.begin(owner, _cannot_be_cut_off), span, len(body))
    await request.respond(204, b"", ())
