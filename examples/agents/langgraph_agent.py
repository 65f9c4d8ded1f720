"""An agent with LangGraph: a model that may use a tool, as often as it wants."""

from typing import Any

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from openai import AsyncOpenAI

from lightning_core import LLM, PromptTemplate, rollout


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


@rollout
async def solve(task: dict[str, Any], llm: LLM, prompt_template: PromptTemplate) -> float:
    """Answer a question; the reward says whether the answer is in what the model said last."""
    async with AsyncOpenAI(base_url=llm.get_base_url(), api_key=llm.api_key or "none") as client:
        chat = ChatOpenAI(model=llm.model, async_client=client.chat.completions, **llm.sampling_parameters)
        model = chat.bind_tools([multiply])

        async def ask(state: MessagesState) -> dict[str, Any]:
            return {"messages": [await model.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("ask", ask)
        graph.add_node("tools", ToolNode([multiply]))
        graph.add_edge(START, "ask")
        graph.add_conditional_edges("ask", tools_condition)
        graph.add_edge("tools", "ask")
        said = SystemMessage(prompt_template.format()), HumanMessage(task["question"])
        ended = await graph.compile().ainvoke({"messages": [*said]})
    return float(task["answer"] in ended["messages"][-1].text)
