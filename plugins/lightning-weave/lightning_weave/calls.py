"""From Weave's record of a call to the attributes of a span."""

import re
from collections.abc import Mapping
from typing import Any

from lightning_proxy.answer import Answer
from lightning_proxy.dialects import DIALECTS, Dialect
from lightning_proxy.spans import Capture, attributes_of

from lightning_core.adapter import genai
from lightning_core.emitter.attributes import describe
from lightning_core.semconv import LightningSpanAttributes

CALL_ID = "weave.call_id"
DISPLAY_NAME = "weave.display_name"
KIND = "weave.kind"
"""What the op says that it is: `llm`, `tool`, `agent`, ..."""
ATTRIBUTES = "weave.attributes"
"""Prefix of what `weave.attributes` was given."""

_NAME = LightningSpanAttributes.OPERATION_NAME.value
_INPUT = LightningSpanAttributes.OPERATION_INPUT.value
_OUTPUT = LightningSpanAttributes.OPERATION_OUTPUT.value
_OP = re.compile(r"/op/([^/:]+):")
_SAID = frozenset({"messages", "tools", "input", "instructions", "system", "prompt", "model"})
"""What the GenAI attributes of a model call tell of its request."""
_NOT_ASKED = frozenset({"self", "_weave_stream_start_time"})
"""What Weave keeps among the inputs of a client's method, and no caller gave."""
_NOT_GIVEN = "NOT_GIVEN"
"""What Weave makes of OpenAI's mark of an argument that was left out."""
_WEAVES_OWN = frozenset({"weave", "integration"})
"""What Weave itself adds to the attributes of a call: versions, and what made it."""


def op_name(reference: str) -> str:
    """Return the name of an op, of `weave:///entity/project/op/name:digest`; anything else is the name itself."""
    found = _OP.search(reference)
    return found[1] if found else reference


def beginning(start: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a span has of a call that begins."""
    told: Mapping[str, Any] = start.get("attributes") or {}
    name = op_name(start["op_name"])
    attributes: dict[str, Any] = {_NAME: name, CALL_ID: start["id"]}
    if start.get("display_name") not in (None, name):
        attributes[DISPLAY_NAME] = start["display_name"]
    if kind := (told.get("weave") or {}).get("kind"):
        attributes[KIND] = kind
    own = {key: value for key, value in told.items() if key not in _WEAVES_OWN}
    return attributes | (describe(ATTRIBUTES, own) if own else {})


def ending(start: Mapping[str, Any], output: Any, failed: bool) -> dict[str, Any]:
    """Return what a span has of a call that ended: what went in, and what came out.

    A call of a model has the attributes that the model proxy gives it, so that everything that reads one reads the
    other.
    """
    inputs: dict[str, Any] = dict(start.get("inputs") or {})
    is_model_call = ((start.get("attributes") or {}).get("weave") or {}).get("kind") == "llm"
    dialect = _dialect(inputs, output, failed) if is_model_call else None
    if dialect is None:
        attributes = _described(_INPUT, inputs) | _described(_OUTPUT, output)
        if is_model_call:
            attributes[genai.OPERATION_NAME] = "chat"
            if isinstance(inputs.get("model"), str):
                attributes[genai.REQUEST_MODEL] = inputs["model"]
        return attributes
    rest = {name: value for name, value in inputs.items() if name not in _SAID | _NOT_ASKED and value != _NOT_GIVEN}
    return _described(_INPUT, rest) | _model_call(dialect, inputs, output)


def _described(name: str, value: Any) -> dict[str, Any]:
    return {} if value is None or value == {} else describe(name, value)


def _dialect(request: Mapping[str, Any], output: Any, failed: bool) -> Dialect | None:
    """Find out which API was called, by the answer, or by the request of a call that has none."""
    answer = output if isinstance(output, Mapping) else {}
    if "choices" in answer:
        return DIALECTS["/chat/completions" if "messages" in request else "/completions"]
    if "messages" in request and isinstance(answer.get("content"), list):
        return DIALECTS["/messages"]
    if "input" in request and isinstance(answer.get("output"), list):
        return DIALECTS["/responses"]
    if "input" in request and isinstance(answer.get("data"), list):
        return DIALECTS["/embeddings"]
    return DIALECTS["/chat/completions"] if failed and "messages" in request else None


def _model_call(dialect: Dialect, request: dict[str, Any], output: Any) -> dict[str, Any]:
    answer = Answer()
    if isinstance(output, dict):
        answer = dialect.read(_of_stream(output) if request.get("stream") else output)
    return attributes_of(dialect, request, answer, Capture())


def _of_stream(answer: dict[str, Any]) -> dict[str, Any]:
    """Make a whole answer of what Weave 0.54 assembled of a stream.

    It keeps the log-probabilities of the last piece only, so they are left out; and where a piece had some, it does
    not turn the sum of the pieces into a message.
    """
    choices = []
    for choice in answer.get("choices") or ():
        if isinstance(choice, dict):
            kept = {name: value for name, value in choice.items() if name not in ("logprobs", "delta")}
            choices.append({"message": choice.get("delta")} | kept)
    return answer | ({"choices": choices} if choices else {})
