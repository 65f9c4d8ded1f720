"""Half of a surrogate pair, which programs in Python send when a model's answer was cut between two tokens."""

import json

import pytest

from lightning_core.types import Span

BROKEN, MENDED = "a\ud800", "a\ufffd"
HEADERS = {"content-type": "application/json"}


@pytest.mark.parametrize("path", ["spans", "spans/bulk"])
async def test_a_span_of_a_foreign_client_is_mended_as_one_that_is_made_here(server, memory, ask, path):
    started = await memory.start_rollout("a")
    ids = {"rollout_id": started.rollout_id, "attempt_id": started.attempt.attempt_id}
    broken = {"name": BROKEN, "attributes": {BROKEN: BROKEN, "list": [BROKEN, 1]}}
    sound = Span.from_attributes(**ids, name="sound", attributes={"text": "a"}).model_dump(mode="json")
    span = {**sound, **broken}
    # As json.dumps has it, which writes an escape for what UTF-8 cannot hold.
    body = json.dumps(span if path == "spans" else {"spans": [span]}).encode()
    assert b"\\ud800" in body
    status, _ = await ask("POST", f"{server.url}/v1/agl/{path}", data=body, headers=HEADERS)
    assert status == 201
    await memory.add_span(Span.from_attributes(**ids, **broken))
    there, here = await memory.query_spans(started.rollout_id)
    assert (there.name, there.attributes) == (here.name, here.attributes)
    assert there.attributes == {MENDED: MENDED, "list": [MENDED, 1]}


async def test_a_broken_text_in_otlp_json_costs_nothing(server, memory, ask):
    started = await memory.start_rollout("a")
    place = {
        "agentlightning.rollout_id": started.rollout_id,
        "agentlightning.attempt_id": started.attempt.attempt_id,
        "text": BROKEN,
    }
    span = {
        "traceId": "0af7651916cd43dd8448eb211c80319c",
        "spanId": "b7ad6b7169203331",
        "name": BROKEN,
        "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in place.items()],
    }
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()
    status, answer = await ask("POST", f"{server.url}/v1/traces", data=body, headers=HEADERS)
    assert (status, answer) == (200, {})
    [stored] = await memory.query_spans(started.rollout_id)
    assert (stored.name, stored.attributes["text"]) == (MENDED, MENDED)
