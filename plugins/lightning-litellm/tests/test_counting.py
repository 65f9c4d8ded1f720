"""Anthropic's count of tokens, for providers that have no such endpoint."""

from typing import Any

import pytest
from lightning_proxy.testing import FakeEngine
from litellm_agents import MakeAgent

pytestmark = [
    pytest.mark.usefixtures("nothing_left_running"),
    # The library is written for an older pydantic; what that warns of is its affair.
    pytest.mark.filterwarnings("ignore:Item '.*' on TypedDict class", "ignore:Accessing the 'model_"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings"),
]

MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "Which files are there?"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "ls", "input": {"path": "."}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "README.md " * 50}]},
]
TOOLS = [{"name": "ls", "description": "Lists files.", "input_schema": {"type": "object", "properties": {}}}]
PATH = "/messages/count_tokens"


async def test_a_conversation_is_counted_with_its_tools_and_instructions(
    make_agent: MakeAgent, engine: FakeEngine
) -> None:
    agent = await make_agent()
    counts = []
    for more in ({}, {"tools": TOOLS}, {"tools": TOOLS, "system": [{"type": "text", "text": "You are terse. " * 20}]}):
        async with agent.post(PATH, messages=MESSAGES, **more) as response:
            assert response.status == 200
            counts.append((await response.json())["input_tokens"])
    assert counts == sorted(set(counts))
    assert 100 < counts[0] < 400
    assert not engine.received
    assert not await agent.proxy.store.query_spans(*agent.ids)  # type: ignore[union-attr]


@pytest.mark.parametrize("messages", [[], [{"role": "user", "content": [{"type": "unheard-of"}]}]])
async def test_what_cannot_be_counted_is_refused_in_the_apis_form(make_agent: MakeAgent, messages: Any) -> None:
    agent = await make_agent()
    async with agent.post(PATH, messages=messages) as response:
        answered = await response.json()
    assert (response.status, answered["error"]["type"]) == (400, "invalid_request_error")
