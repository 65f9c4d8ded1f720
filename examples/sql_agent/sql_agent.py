"""An agent that answers a question with SQL: a LangGraph graph that writes, executes, checks and rewrites a query."""

import os
import re
import sqlite3
import ssl
from contextlib import closing
from typing import Any, Literal, TypedDict

from databases import Question, connect, same_rows, schema
from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph
from lightning_agentos import PolicyViolationError, governed
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from lightning_core import LLM, PromptTemplate, emit_message, operation, rollout

MAX_TURNS = 3
"""Queries that it writes at most; the last one is not checked."""
CODE = re.compile(r"```(?:sql(?:ite)?\b)?\s*(.*?)```", re.DOTALL | re.IGNORECASE)
TLS = ssl.create_default_context()  # loading the certificates takes 20 ms, and a client is made for every task

CHECK = """Question: {question}

{schema}

Query: {query}

It gave {outcome}

Does the query answer the question, with the right columns? End with CORRECT or INCORRECT."""
REWRITE = "\n\nYou wrote:\n{query}\nIt gave {outcome}\nA reviewer says:\n{verdict}\nWrite another query."


class State(TypedDict, total=False):
    """What the nodes of the graph know."""

    prompt: str
    query: str
    outcome: str
    """Its rows, or what is wrong with it."""
    verdict: str
    turns: int


@governed
def run_sql(database: str, query: str) -> str:
    """Run a query; return its rows, or what is wrong with it."""
    with closing(connect(database)) as connection:
        try:
            return f"rows: {connection.execute(query).fetchmany(5)}"
        except (sqlite3.Error, sqlite3.Warning) as exc:
            return f"error: {exc}"


def make_graph(model: ChatOpenAI, task: Question) -> Any:
    """Return the graph that answers one question; its input is a prompt, its output has the query."""

    async def ask(node: str, prompt: str) -> str:
        agent: dict[str, Any] = {"gen_ai.agent.name": node}  # by this name rl.yaml selects what is trained
        with operation(name=node, **agent):
            reply = (await model.ainvoke(prompt)).text
        return reply.encode(errors="replace").decode()  # half a character can neither be executed nor sent

    async def write(state: State) -> State:
        """Write a query, the first one or another one."""
        prompt, turns = state["prompt"], state.get("turns", 0)
        if turns:
            prompt += REWRITE.format(**state)
        reply = await ask("rewrite" if turns else "write", prompt)
        fenced = CODE.search(reply)
        return {"query": (fenced[1] if fenced else reply).strip(), "turns": turns + 1}

    def execute(state: State) -> State:
        try:
            outcome = run_sql(task["database"], state["query"])
        except PolicyViolationError as exc:
            outcome = f"error: {exc.reason}"
        emit_message(f"{state['query']}\n-- {outcome}")
        return {"outcome": outcome}

    async def check(state: State) -> State:
        asked = CHECK.format(question=task["question"], schema=schema(task["database"]), **state)
        return {"verdict": await ask("check", asked)}

    def after_execution(state: State) -> Literal["check", "__end__"]:
        return "check" if state["turns"] < MAX_TURNS else "__end__"

    def after_check(state: State) -> Literal["rewrite", "__end__"]:
        return "rewrite" if "INCORRECT" in state["verdict"] else "__end__"

    graph = StateGraph(State)
    graph.add_node("write", write)
    graph.add_node("execute", execute)
    graph.add_node("check", check)
    graph.add_node("rewrite", write)
    graph.add_edge(START, "write")
    graph.add_edge("write", "execute")
    graph.add_conditional_edges("execute", after_execution)
    graph.add_conditional_edges("check", after_check)
    graph.add_edge("rewrite", "execute")
    return graph.compile()


@rollout
async def answer(task: Question, prompt_template: PromptTemplate, llm: LLM | None = None) -> str:
    """Return the query that the agent ends with; `execution_accuracy` scores it.

    Without an `llm`, as when a prompt is tuned, the model is what the environment names.
    """
    name = os.environ.get("AGL_SQL_MODEL", "gpt-4.1-mini") if llm is None else llm.model
    sampling: dict[str, Any] = {"temperature": 0} if llm is None else llm.sampling_parameters
    endpoint: dict[str, Any] = {} if llm is None else {"base_url": llm.get_base_url(), "api_key": llm.api_key or "none"}
    prompt = prompt_template.format(schema=schema(task["database"]), question=task["question"])
    async with AsyncOpenAI(**endpoint, http_client=DefaultAsyncHttpxClient(verify=TLS)) as client:
        model = ChatOpenAI(model=name, async_client=client.chat.completions, **sampling)
        ended = await make_graph(model, task).ainvoke({"prompt": prompt})
    return str(ended["query"])


def execution_accuracy(task: Question, result: str) -> float:
    """Return 1 where the query gives the rows of the right one, else 0."""
    return float(same_rows(task["database"], result, task["gold"]))
