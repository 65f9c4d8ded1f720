"""What a span has beside the texts: how an answer was asked for, what a model thought, and what was cached."""

import json
from typing import Any

import pytest
from lightning_proxy.answer import Answer
from lightning_proxy.apis import DIALECTS
from lightning_proxy.spans import Capture, attributes_of
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Serve, answering, status_of

from lightning_core.adapter import TraceToMessages
from lightning_core.types import Span

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def record(path: str, request: dict[str, Any], answer: dict[str, Any] | None = None, **capture: Any) -> dict[str, Any]:
    dialect = DIALECTS[path]
    read = Answer() if answer is None else dialect.read(answer)
    return attributes_of(dialect, {"model": "small", **request}, read, Capture(**capture))


def texts(attributes: dict[str, Any], name: str) -> Any:
    return json.loads(attributes[f"gen_ai.{name}"])


FORM = {"type": "json_schema", "name": "c", "schema": SCHEMA}


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (
            "/chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": FORM}, "reasoning_effort": "low"},
        ),
        ("/responses", {"text": {"format": FORM}, "reasoning": {"effort": "low"}}),
        ("/messages", {"output_config": {"effort": "low", "format": FORM}}),
    ],
)
def test_how_an_answer_is_asked_for_is_recorded(path: str, asked: dict[str, Any]) -> None:
    asked = {**asked, "tool_choice": "required"}
    found = record(path, asked)
    assert found["gen_ai.output.type"] == "json"
    assert texts(found, "request.structured_output_schema") == SCHEMA
    assert found["gen_ai.request.reasoning_effort"] == "low"
    assert found["gen_ai.request.tool_choice"] == "required"
    assert "gen_ai.request.structured_output_schema" not in record(path, asked, content=False)
    hidden = record(path, asked, redact=lambda what, value: "***" if what == "schema" else value)
    assert hidden["gen_ai.request.structured_output_schema"] == '"***"'


def test_what_an_agent_gives_for_a_server_of_tools_is_not_recorded() -> None:
    server = {"type": "mcp", "server_label": "gh", "authorization": "oauth-1", "headers": {"Authorization": "Bearer x"}}
    (recorded,) = texts(record("/responses", {"tools": [server], "input": "x"}), "tool.definitions")
    assert recorded == {**server, "authorization": "***", "headers": {"Authorization": "***"}}


def test_what_the_backend_keeps_is_named() -> None:
    prompt = {"id": "pmpt_1", "version": "2", "variables": {"city": "Rome"}}
    search = {"type": "file_search", "vector_store_ids": ["vs_1"]}
    given = [{"type": "item_reference", "id": "msg_1"}, {"role": "user", "content": "and now?"}]
    found = record("/responses", {"prompt": prompt, "instructions": "Be kind.", "tools": [search], "input": given})
    assert found["gen_ai.prompt.name"] == "pmpt_1"
    assert texts(found, "system_instructions") == [
        {"type": "prompt", **prompt},
        {"type": "text", "content": "Be kind."},
    ]
    assert texts(found, "tool.definitions") == [search]
    assert texts(found, "input.messages")[0] == {
        "role": "assistant",
        "parts": [{"type": "item_reference", "id": "msg_1"}],
    }


def test_reasoning_of_the_responses_api_is_recorded() -> None:
    told = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "Adds."}],
        "content": [{"type": "reasoning_text", "text": "1+2"}, {"type": "reasoning_text", "text": " is 3."}],
        "encrypted_content": "gAAA",
    }
    summed = {"type": "reasoning", "id": "rs_2", "summary": [{"type": "summary_text", "text": "Checks."}]}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "3"}]}
    parts = [
        {"type": "reasoning", "content": "1+2 is 3.", "summary": "Adds.", "encrypted_content": "gAAA", "id": "rs_1"},
        {"type": "reasoning", "content": "Checks.", "id": "rs_2"},
        {"type": "text", "content": "3"},
    ]
    asked = [{"role": "user", "content": "1+2?"}, told, summed, said, {"role": "user", "content": "Sure?"}]
    found = record("/responses", {"input": asked}, {"status": "completed", "output": [told, summed, said]})
    assert texts(found, "output.messages")[0]["parts"] == parts
    assert [message["role"] for message in texts(found, "input.messages")] == ["user", "assistant", "user"]
    assert texts(found, "input.messages")[1]["parts"] == parts
    span = Span.from_attributes(attributes=found, rollout_id="r", attempt_id="a")
    answer = TraceToMessages().adapt([span])[0]["messages"][-1]
    assert answer == {"role": "assistant", "content": "3", "reasoning_content": "1+2 is 3.Checks."}


def test_tools_that_the_client_or_the_provider_runs_are_recorded() -> None:
    items = [
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "x"}},
        {"type": "local_shell_call", "call_id": "c1", "action": {"command": ["ls"]}},
        {"type": "function_call", "call_id": "c3", "namespace": "files", "name": "open", "arguments": "{}"},
        {"type": "local_shell_call_output", "call_id": "c1", "output": "a.txt"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_image", "image_url": "https://example.org/a.png"}],
        },
    ]
    first, *results = texts(record("/responses", {"input": items}), "input.messages")
    assert first["parts"] == [
        {"type": "server_tool_call", "id": "ws_1", "name": "web_search", "server_tool_call": items[0]},
        {"type": "tool_call", "id": "c1", "name": "local_shell", "arguments": '{"command":["ls"]}'},
        {"type": "tool_call", "id": "c3", "name": "open", "arguments": "{}", "namespace": "files"},
    ]
    assert [message["parts"] for message in results] == [
        [{"type": "tool_call_response", "id": "c1", "response": "a.txt"}],
        [
            {
                "type": "tool_call_response",
                "id": "c2",
                "response": [{"type": "uri", "modality": "image", "uri": "https://example.org/a.png"}],
            }
        ],
    ]


def test_what_anthropics_api_has_besides_texts_is_recorded() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}}
    thoughts = [
        {"type": "thinking", "thinking": "Hm.", "signature": "EqQB"},
        {"type": "redacted_thinking", "data": "EmwK"},
    ]
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
    hits = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"type": "web_search_result"}]}
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    results = [
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "see"}, image]},
        {"type": "tool_result", "tool_use_id": "t2", "content": "no such file", "is_error": True},
    ]
    tools = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}, {"name": "look", "input_schema": {}}]
    messages = [{"role": "assistant", "content": [*thoughts, search, hits, call]}, {"role": "user", "content": results}]
    found = record("/messages", {"messages": messages, "tools": tools}, {"content": [*thoughts, search, hits, call]})
    said = texts(found, "output.messages")[0]["parts"]
    assert said[:2] == [
        {"type": "reasoning", "content": "Hm.", "signature": "EqQB"},
        {"type": "reasoning", "content": "", "redacted": "EmwK"},
    ]
    assert [part["type"] for part in said[2:]] == ["server_tool_call", "server_tool_call_response", "tool_call"]
    assistant, first, second = texts(found, "input.messages")
    assert assistant["parts"] == said
    blob = {"type": "blob", "modality": "image", "mime_type": "image/png", "content": "iVBO"}
    assert first["parts"][0]["response"] == [{"type": "text", "content": "see"}, blob]
    assert second["parts"] == [{"type": "tool_call_response", "id": "t2", "response": "no such file", "is_error": True}]
    builtin, function = texts(found, "tool.definitions")
    assert builtin == tools[0]
    assert function["function"]["name"] == "look"
    span = Span.from_attributes(attributes=found, rollout_id="r", attempt_id="a")
    answer = TraceToMessages().adapt([span])[0]["messages"][-1]
    assert (answer["content"], answer["reasoning_content"]) == (None, "Hm.")
    assert answer["tool_calls"][0]["function"]["name"] == "look"


PRICES = {
    "input_cost_per_token": 1.0,
    "output_cost_per_token": 0.0,
    "cache_read_input_token_cost": 0.1,
    "cache_creation_input_token_cost": 1.25,
    "cache_creation_input_token_cost_above_1hr": 2.0,
}


@pytest.mark.parametrize(
    ("left_out", "cost"),
    [
        ((), 10 + 0.1 * 1000 + 1.25 * 300 + 2.0 * 200),
        (("cache_creation_input_token_cost_above_1hr",), 10 + 0.1 * 1000 + 1.25 * 500),
        (("cache_creation_input_token_cost_above_1hr", "cache_creation_input_token_cost"), 510 + 0.1 * 1000),
    ],
)
async def test_what_is_written_to_a_cache_has_its_price(
    serve: Serve, engine: FakeEngine, left_out: Any, cost: float
) -> None:
    usage = {
        "input_tokens": 10,
        "output_tokens": 5,
        "cache_read_input_tokens": 1000,
        "cache_creation_input_tokens": 500,
        "cache_creation": {"ephemeral_5m_input_tokens": 300, "ephemeral_1h_input_tokens": 200},
    }

    answering(engine, {"content": [], "stop_reason": "end_turn", "usage": usage})
    prices = {name: price for name, price in PRICES.items() if name not in left_out}
    agent = await serve(params=prices)
    assert await status_of(agent.post("/messages", messages=[], max_tokens=5)) == 200
    attributes = (await agent.span()).attributes
    assert attributes["gen_ai.usage.input_tokens"] == 1510
    assert attributes["gen_ai.usage.cache_creation.input_tokens"] == 500
    assert attributes["gen_ai.usage.cost"] == pytest.approx(cost)
