"""Agents of client libraries, unmodified, in front of a model of tokens: none stops on the day it is to be trained."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import agents
import anthropic
import langchain_openai
import openai
import pydantic_ai
import pytest
import smolagents
from proxy_fixtures import Agent
from pydantic import BaseModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from smolagents import tool
from token_engine import StreamingEngine

from lightning_core.adapter import TraceToTrajectories

Start = Callable[..., Awaitable[Agent]]


class City(BaseModel):
    name: str
    people: int


PARIS = {"name": "Paris", "people": 2}
AS_TEXT = json.dumps(PARIS)


class Free(StreamingEngine):
    """Takes no schemas; it answers as its prompt asks."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(*(f"<tool_call>{json.dumps(each)}</tool_call>" if is_call(each) else each for each in answers))


class Constrained(StreamingEngine):
    """Takes schemas: a forced call comes as its JSON alone."""

    takes = frozenset({"json_schema"})

    def __init__(self, *answers: Any) -> None:
        super().__init__(*(json.dumps(each) if is_call(each) else each for each in answers))


def is_call(answer: Any) -> bool:
    return isinstance(answer, dict)


engines = pytest.mark.parametrize("engine_type", [Free, Constrained])


async def rows_of(agent: Agent) -> int:
    found = TraceToTrajectories().adapt(await agent.spans())
    assert found.refused == ()
    return len(found.rows)


async def ignored_by(agent: Agent) -> set[str]:
    return {
        name for span in await agent.spans() for name in span.attributes.get("agentlightning.ignored_parameters", ())
    }


@engines
async def test_smolagents_calls_tools_that_it_must_call(start: Start, engine_type: Any) -> None:
    @tool
    def add(a: int, b: int) -> int:
        """Add.

        Args:
            a: One.
            b: Two.
        """
        return a + b

    engine = engine_type(
        {"name": "add", "arguments": {"a": 1, "b": 2}}, {"name": "final_answer", "arguments": {"answer": "3"}}
    )
    agent = await start(engine)
    model = smolagents.OpenAIModel("small", api_base=agent.base, api_key="none")
    solver = smolagents.ToolCallingAgent(tools=[add], model=model, verbosity_level=0)
    assert await asyncio.to_thread(solver.run, "1 + 2?", max_steps=3) == "3"
    assert ("json_schema" in engine.sampling[0]) is (engine_type is Constrained)
    assert ("tool_choice" in await ignored_by(agent)) is (engine_type is Free)


@engines
@pytest.mark.parametrize("model_type", [OpenAIChatModel, OpenAIResponsesModel])
@pytest.mark.parametrize("output", ["tool", "native"])
async def test_pydantic_ai_has_an_output_type(start: Start, engine_type: Any, model_type: Any, output: str) -> None:
    call = {"name": "final_result", "arguments": PARIS}
    agent = await start(engine_type(call if output == "tool" else AS_TEXT))
    wanted: Any = City if output == "tool" else pydantic_ai.NativeOutput(City)
    async with openai.AsyncOpenAI(base_url=agent.base, api_key="none") as client:
        model = model_type("small", provider=OpenAIProvider(openai_client=client))
        result = await pydantic_ai.Agent(model, output_type=wanted).run("Where?")
    assert result.output == City(**PARIS)
    asked = "tool_choice" if output == "tool" else "response_format"
    assert (asked in await ignored_by(agent)) is (engine_type is Free)


@engines
@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
async def test_langchain_has_structured_output(start: Start, engine_type: Any, method: Any) -> None:
    call = {"name": "City", "arguments": PARIS}
    agent = await start(engine_type(call if method == "function_calling" else AS_TEXT))
    model = langchain_openai.ChatOpenAI(model="small", base_url=agent.base, api_key="none")
    assert await model.with_structured_output(City, method=method).ainvoke("Where? As JSON") == City(**PARIS)


@engines
@pytest.mark.parametrize("model_type", [agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel])
async def test_the_agents_sdk_has_an_output_type_and_goes_on_from_a_response(
    start: Start, engine_type: Any, model_type: Any
) -> None:
    agent = await start(engine_type(AS_TEXT))
    agents.set_tracing_disabled(True)
    async with openai.AsyncOpenAI(base_url=agent.base, api_key="none", max_retries=0) as client:
        solver: Any = agents.Agent(name="a", model=model_type("small", client), output_type=City)
        first = await agents.Runner.run(solver, "Where?")
        assert first.final_output == City(**PARIS)
        if model_type is agents.OpenAIResponsesModel:
            second = await agents.Runner.run(solver, "Sure?", previous_response_id=first.last_response_id)
        else:
            second = await agents.Runner.run(solver, [*first.to_input_list(), {"role": "user", "content": "Sure?"}])
    assert second.final_output == City(**PARIS)
    assert await rows_of(agent) == 1


@engines
async def test_clients_of_openai_and_anthropic_force_tools(start: Start, engine_type: Any) -> None:
    call = {"name": "City", "arguments": PARIS}
    agent = await start(engine_type(call))
    async with openai.AsyncOpenAI(base_url=agent.base, api_key="none", max_retries=0) as client:
        forced = openai.pydantic_function_tool(City)
        choice: Any = {"type": "function", "function": {"name": "City"}}
        said: Any = [{"role": "user", "content": "Where?"}]
        answer = await client.chat.completions.parse(model="small", messages=said, tools=[forced], tool_choice=choice)
    assert answer.choices[0].message.tool_calls is not None
    assert answer.choices[0].message.tool_calls[0].function.parsed_arguments == City(**PARIS)
    tools: Any = [{"name": "City", "input_schema": City.model_json_schema()}]
    base = agent.base.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=base, api_key="none", max_retries=0) as other:
        message = await other.messages.create(
            model="small", max_tokens=99, messages=said, tools=tools, tool_choice={"type": "any"}
        )
    (block,) = message.content
    assert block.type == "tool_use"
    assert block.input == PARIS
