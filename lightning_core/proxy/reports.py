"""What an agent that is no Python function says of its own attempt: a reward, or an annotation."""

from typing import Any

from lightning_core.adapter import read_model_calls
from lightning_core.emitter import emit_annotation, emit_reward
from lightning_core.proxy.exchange import Exchange
from lightning_core.proxy.jsons import parse_object
from lightning_core.proxy.live_attempts import LiveAttempts
from lightning_core.proxy.outbox import Outbox
from lightning_core.proxy.owner import Owner
from lightning_core.proxy.refusals import Refused
from lightning_core.registry import did_you_mean
from lightning_core.reported import as_reported
from lightning_core.types import ProxyLLM, Span, SpanCoreFields
from lightning_core.types.text import hide_attempt_keys

REPORT_PATH = "/report"

_MAX_BODY_BYTES = 256 * 1024
_FIELDS = ("reward", "annotation")
_EXAMPLE = '{"reward": 1.0}, {"reward": {"right": 1, "short": 0.5}} or {"annotation": {"tool": "search"}}'


def report_url(llm: ProxyLLM, rollout_id: str, attempt_id: str) -> str:
    """Return where an attempt reports."""
    return llm.get_base_url(rollout_id, attempt_id).removesuffix("/v1") + REPORT_PATH


class Reports:
    """Takes reports of live attempts. They go to the store with the model calls, in the order in which they came.

    Args:
        attempts: Knows which attempts are live.
        outbox: Brings spans to the store.
    """

    def __init__(self, attempts: LiveAttempts, outbox: Outbox) -> None:
        self._attempts = attempts
        self._outbox = outbox

    async def take(self, exchange: Exchange, owner: Owner | None, *, has_key: bool) -> None:
        """Answer a report. When it is answered it is in the outbox: the end of the attempt waits until it is stored.

        Args:
            exchange: The request.
            owner: Whose it is; None for nobody's.
            has_key: Whether the caller has the attempt's key.

        Raises:
            Refused: When the attempt is not live, or the report is none.
        """
        if owner is None:
            raise Refused(
                403,
                "unattributed",
                "the report belongs to no attempt: use the URL, or the key, that its agent was given",
            )
        await self._attempts.require(owner, has_key=has_key)
        self._outbox.require_room()
        body = await exchange.body(_MAX_BODY_BYTES)
        spans = [
            as_reported(Span.from_core_fields(made, rollout_id=owner.rollout_id, attempt_id=owner.attempt_id))
            for made in _read(parse_object(hide_attempt_keys(body.decode("utf-8", "replace")).encode()))
        ]
        if read_model_calls(spans):
            raise Refused(
                400, "invalid_report", "an annotation cannot stand for a model call; name its fields otherwise"
            )
        self._attempts.require_not_ended(owner)  # the body took its time
        for span in spans:
            self._outbox.end(self._outbox.begin(owner, _cannot_be_cut_off), span, len(body))
        await exchange.answer(204, b"", ())


def _read(fields: dict[str, Any] | None) -> list[SpanCoreFields]:
    if not fields:
        raise Refused(400, "invalid_report", f"the report is no JSON object with something in it; send {_EXAMPLE}")
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
    except (TypeError, ValueError) as exc:
        raise Refused(400, "invalid_report", f"the report cannot be taken: {exc}") from exc
    return made


def _cannot_be_cut_off(reason: str) -> None:
    """Do nothing: a report has ended when it has begun."""
