"""Runs clients and coding agents as they are, through the proxy, and prints which leave one exact training row.

`make agents` installs the coding agents into `.venv-agents`, with npm and pip; `make agents AGENTS="codex aider"` runs
some. Each gets one task, for which it has to call a tool, against an engine of this machine that gives token ids.
"""

import asyncio
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from aiohttp import web
from lightning_agents import CommandAgent
from lightning_proxy.testing import FakeEngine

from lightning_core import LLM, LitAgent, PromptTemplate, Trainer, rollout
from lightning_core.adapter import TraceToTrajectories
from lightning_core.errors import LightningError

ROOT = Path(__file__).parents[1]
INSTALLED = ROOT / ".venv-agents"
EXAMPLES = ROOT / "examples/agents"
TASK = {"question": "What is 6 times 7?", "answer": "42"}
WRITE = "echo 42 >answer.txt"
SECONDS = 180

ADD = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}


class Model(FakeEngine):
    """Calls the first of these tools that it is offered, and then says the answer.

    It sees calls as chat templates write them: name and arguments, whatever the order and the spaces of their JSON.
    """

    tools: ClassVar[dict[str, dict[str, Any]]] = {
        "multiply": {"a": 6, "b": 7},
        "Bash": {"command": WRITE, "description": "Write the answer"},
        "bash": {"command": WRITE, "description": "Write the answer"},
        "exec_command": {"cmd": WRITE},
        "run_shell_command": {"command": WRITE, "description": "Write the answer", "is_background": False},
    }
    ends: ClassVar[dict[str, dict[str, Any]]] = {"final_answer": {"answer": "42"}}
    """By which some agents end: smolagents, for one."""
    text = "42"

    async def _chat(self, request: web.Request, fields: dict[str, Any]) -> web.StreamResponse:
        offered = [tool["function"]["name"] for tool in fields.get("tools") or ()]
        last = fields["messages"][-1]
        was_called = last["role"] == "tool" or "Observation" in str(last)  # smolagents tells results in words
        tools = self.ends if was_called else self.tools
        wanted = next((name for name in offered if name in tools), None)
        self.replies = [self.text if wanted is None else {"tool_calls": [_call(wanted, tools[wanted])]}]
        messages = [
            {**message, "tool_calls": [_call(**json_of(call)) for call in message["tool_calls"]]}
            if message.get("tool_calls")
            else message
            for message in fields["messages"]
        ]
        return await super()._chat(request, {**fields, "messages": messages})


def _call(name: str, arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments, separators=(",", ":"), sort_keys=True)}
    return {"id": "call-1", "type": "function", "function": function}


def json_of(call: dict[str, Any]) -> dict[str, Any]:
    return {"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"] or "{}")}


# Client libraries, of this environment


@rollout
async def by_messages(task: Any, llm: LLM) -> float:
    import anthropic

    tools: Any = [{"name": "multiply", "input_schema": ADD}]
    said: list[Any] = [{"role": "user", "content": task["question"]}]
    async with anthropic.AsyncAnthropic(base_url=llm.endpoint.removesuffix("/v1"), api_key=llm.api_key) as client:
        for _ in range(2):
            async with client.messages.stream(model=llm.model, max_tokens=99, messages=said, tools=tools) as stream:
                answer = await stream.get_final_message()
            said.append({"role": "assistant", "content": answer.content})
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": "42"}
                for block in answer.content
                if block.type == "tool_use"
            ]
            said.append({"role": "user", "content": results})
    return float("42" in str(answer.content))


@rollout
async def by_responses(task: Any, llm: LLM) -> float:
    import openai

    tools: Any = [{"type": "function", "name": "multiply", "parameters": ADD}]
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        first = await client.responses.create(model=llm.model, input=task["question"], tools=tools)
        result: Any = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "42"}
        answer = await client.responses.create(
            model=llm.model, input=[result], tools=tools, previous_response_id=first.id
        )
    return float("42" in answer.output_text)


@rollout
def by_smolagents(task: Any, llm: LLM) -> float:
    import smolagents

    @smolagents.tool
    def multiply(a: int, b: int) -> int:
        """Multiply.

        Args:
            a: One factor.
            b: The other one.
        """
        return a * b

    model = smolagents.OpenAIModel(llm.model, api_base=llm.endpoint, api_key=llm.api_key)
    agent = smolagents.ToolCallingAgent([multiply], model, max_steps=2, verbosity_level=0)
    return float("42" in str(agent.run(task["question"])))


def example(name: str) -> LitAgent[Any]:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    agent: LitAgent[Any] = module.solve
    return agent


def program(script: str) -> Callable[[], LitAgent[Any]]:
    return lambda: CommandAgent(["sh", str(EXAMPLES / script)], task_variables={"ANSWER": "answer"})


OPENAI, ANTHROPIC, GOOGLE = "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"

CLIENTS: dict[str, tuple[str, str, Callable[[], LitAgent[Any]]]] = {
    "openai": ("chat", OPENAI, lambda: example("openai_async")),
    "openai-responses": ("responses", OPENAI, lambda: by_responses),
    "anthropic": ("messages", ANTHROPIC, lambda: by_messages),
    "google-genai": ("gemini", GOOGLE, lambda: example("google_genai_agent")),
    "langgraph": ("chat", OPENAI, lambda: example("langgraph_agent")),
    "openai-agents": ("chat", OPENAI, lambda: example("openai_agents_sdk")),
    "pydantic-ai": ("chat", OPENAI, lambda: example("pydantic_ai_agent")),
    "smolagents": ("chat", OPENAI, lambda: by_smolagents),
    "claude-code": ("messages", ANTHROPIC, program("claude_code.sh")),
    "codex": ("responses", "its config.toml", program("codex.sh")),
    "gemini-cli": ("gemini", GOOGLE, program("gemini_cli.sh")),
    "qwen-code": ("chat", OPENAI, program("qwen_code.sh")),
    "opencode": ("chat", "its opencode.json", program("opencode.sh")),
    "aider": ("chat", OPENAI, program("aider.sh")),
    "mini-swe-agent": ("chat", OPENAI, program("mini_swe_agent.sh")),
}
TEXTS = {"aider": "answer.txt\n```\n<<<<<<< SEARCH\n=======\n42\n>>>>>>> REPLACE\n```\n"}


async def measure(name: str) -> str:
    """Return the line of a client."""
    api, variable, make = CLIENTS[name]
    async with Model() as engine:
        engine.text = TEXTS.get(name, engine.text)
        if name == "mini-swe-agent":
            engine.ends = {"bash": {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}}  # type: ignore[misc]
        models = [{"model_name": "small", "litellm_params": {"model": "hosted_vllm/small", "api_base": engine.url}}]
        prompt = PromptTemplate(template="What is 6 times 7? Write only the result into the file answer.txt.")
        trainer = Trainer(
            algorithm="baseline",
            llm_proxy={"model_list": models},
            initial_resources={"main_prompt": prompt},
            rollout_config={"timeout_seconds": SECONDS},
        )
        try:
            result = await trainer.fit_async(make(), [TASK])
        except LightningError as exc:
            return f"| {name} | {api} | {variable} | | | failed: {str(exc)[:300]} |"
        (attempt,) = await trainer.store.query_rollouts()
        found = TraceToTrajectories().adapt(await trainer.store.query_spans(attempt.rollout_id))
    calls, rows = result.usage.agent.calls, len(found.rows)
    if result.failures:
        verdict = f"failed: {result.failures[0].cause[:200]}"
    elif result.metrics.get("train_reward", 0) <= 0:
        verdict = "no: it did not solve the task"
    elif rows == 1 and not found.refused:
        verdict = "yes"
    else:
        verdict = "no: " + (
            ", ".join({each.reason for each in found.refused}) or "it does not send all back as the model said it"
        )
    return f"| {name} | {api} | {variable} | {calls} | {rows} | {verdict} |"


async def main(names: list[str]) -> int:
    os.environ["PATH"] = os.pathsep.join(
        [
            *(str(INSTALLED / each / "bin") for each in ("aider", "mini")),
            str(INSTALLED / "node_modules/.bin"),
            os.environ["PATH"],
        ]
    )
    print("| client | API | base URL from | calls | rows | one exact row |\n|---|---|---|---|---|---|")
    lines = []
    for name in names or CLIENTS:
        lines.append(await measure(name))
        print(lines[-1], flush=True)
    return any(not line.endswith("| yes |") for line in lines)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
