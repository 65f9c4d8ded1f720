"""Agents of frameworks, unchanged: they work as without the tracer, and each of their calls counts once."""

from collections.abc import Callable
from typing import Any

import pytest
from agentops_parts import CALL, CHAT, Attempt
from lightning_agentops import AgentOpsTracer
from lightning_proxy.testing import FakeEngine, tokens_of

REPLIES: list[Any] = [{"tool_calls": [CALL]}, "It's 3."]


def with_langgraph(url: str) -> Callable[[], Any]:
    from langchain_core.runnables import RunnableConfig
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition
    from openai import AsyncOpenAI

    @tool
    def add(a: int) -> int:
        """Add two."""
        return a + 2

    async def run() -> str:
        async with AsyncOpenAI(base_url=url, api_key="k") as client:
            return await solve(client)

    async def solve(client: AsyncOpenAI) -> str:
        model = ChatOpenAI(model="small", async_client=client.chat.completions).bind_tools([add])

        async def ask(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
            assert config["configurable"]["own"] == "config"
            return {"messages": [await model.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("ask", ask)
        graph.add_node("tools", ToolNode([add]))
        graph.add_edge(START, "ask")
        graph.add_conditional_edges("ask", tools_condition)
        graph.add_edge("tools", "ask")
        given: Any = {"messages": [("user", "1 + 2?")]}
        ended = await graph.compile().ainvoke(given, {"configurable": {"own": "config"}})
        return str(ended["messages"][-1].text)

    return run


def with_openai_agents(url: str) -> Callable[[], Any]:
    from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
    from openai import AsyncOpenAI

    @function_tool
    def add(a: int) -> int:
        """Add two."""
        return a + 2

    async def run() -> str:
        async with AsyncOpenAI(base_url=url, api_key="k") as client:
            agent = Agent(name="solver", model=OpenAIChatCompletionsModel("small", client), tools=[add])
            ended = await Runner.run(agent, "1 + 2?", run_config=RunConfig(tracing_disabled=False))
        return str(ended.final_output)

    return run


@pytest.mark.parametrize(
    ("package", "make", "frameworks"),
    [("langgraph", with_langgraph, set()), ("agents.run", with_openai_agents, {"solver", "turn", "generation"})],
)
async def test_an_agent_works_and_each_call_counts_once(
    tracer: AgentOpsTracer,
    attempt: Attempt,
    engine: FakeEngine,
    package: str,
    make: Callable[[str], Callable[[], Any]],
    frameworks: set[str],
) -> None:
    pytest.importorskip(package, reason="it is not installed here")
    engine.replies = list(REPLIES)
    run = make(engine.url)  # imported while the tracer is at work
    async with attempt.traced(tracer):
        assert await run() == "It's 3."
    spans = await attempt.spans()
    assert len([span for span in spans if span.name == CHAT]) == len(engine.received) == 2
    assert frameworks <= {span.name for span in spans}
    first, second = await attempt.calls()
    assert first.answers[0]["tool_calls"] == [CALL]
    assert second.answers[0]["content"] == "It's 3."
    assert [tokens_of(str(message["content"])) for message in second.messages][-1] == tokens_of("3")
