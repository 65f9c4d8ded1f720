"""The service: an agent of the OpenAI Agents SDK behind HTTP. It knows of no training, and imports nothing of it.

uvicorn agent_service:app --port 8000
"""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    FunctionToolResult,
    MaxTurnsExceeded,
    Model,
    ModelBehaviorError,
    ModelProvider,
    ModelSettings,
    OpenAIChatCompletionsModel,
    RunConfig,
    RunContextWrapper,
    Runner,
    ToolsToFinalOutputResult,
    function_tool,
    set_tracing_disabled,
)
from fastapi import FastAPI, HTTPException, Request
from openai import APIConnectionError, AsyncOpenAI, InternalServerError
from pydantic import BaseModel, Field

MODEL = "Default"
"""What the service asks for; the trainer's proxy answers with the model that is trained."""

INSTRUCTIONS = (
    "Solve the problem step by step, and check your answer with the tool. If its score is 0.0, think again. "
    "End with the number alone, as in: #### 42"
)
NUMBER = re.compile(r"####\s*\$?\s*(-?[\d,]*\.?\d+)")

set_tracing_disabled(True)  # else the SDK would send its own traces to OpenAI


class ChatRequest(BaseModel):
    """One conversation, and whose it is."""

    trace_id: str
    question: str
    answer: str
    """GSM8K's solution, which ends with `####` and the number."""
    max_turns: int = Field(ge=1)
    sampling_params: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """What the tool knows, and the model does not."""

    number: str


class ServedModel(ModelProvider):
    """Leads to the model whose address is in the notify file now, and tells it whose calls these are."""

    def __init__(self, client: AsyncOpenAI, trace_id: str) -> None:
        self._client = client
        self._trace_id = trace_id

    def get_model(self, model_name: str | None) -> Model:
        """Return the model, by the SDK's interface."""
        client = self._client.with_options(
            base_url=f"http://{get_llm_server_address()}/v1", default_headers={"trace_id": self._trace_id}
        )
        return OpenAIChatCompletionsModel(model_name or MODEL, client)


def get_llm_server_address() -> str:
    """Return `host:port` of the model's server: the first line of the file that `LLM_SERVER_NOTIFY_FILE` names."""
    return Path(os.environ["LLM_SERVER_NOTIFY_FILE"]).read_text(encoding="utf-8").splitlines()[0]


@function_tool
def calc_gsm8k_reward(context: RunContextWrapper[Sample], answer: str) -> str:
    """Score an answer.

    Args:
        answer: The number that the problem asks for.
    """
    return str(score(answer, context.context.number))


def stop_when_right(context: RunContextWrapper[Sample], results: list[FunctionToolResult]) -> ToolsToFinalOutputResult:
    """End the conversation with an answer that the tool has found right, and go on after a wrong one."""
    is_right = any(result.output == "1.0" for result in results)
    return ToolsToFinalOutputResult(is_right, f"#### {context.context.number}" if is_right else None)


def score(answer: str, number: str) -> float:
    """Return 1 for the right number, else 0."""
    return float(answer.replace(",", "").strip() == number)


def read_number(text: str) -> str:
    """Return the number behind the last `####`; empty where there is none."""
    found = NUMBER.findall(text)
    return found[-1].replace(",", "") if found else ""


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Keep one client of OpenAI's; end with whoever started the service, if that is asked for."""
    if os.environ.get("AGENT_SERVICE_ENDS_WITH_STDIN"):
        # The other end of this pipe is closed by the death of whoever holds it, kill -9 too.
        asyncio.get_running_loop().add_reader(sys.stdin, os.kill, os.getpid(), signal.SIGKILL)
    async with AsyncOpenAI(base_url="http://127.0.0.1/v1", api_key="none") as client:
        app.state.client = client
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/chat")
async def chat(asked: ChatRequest, request: Request) -> dict[str, Any]:
    """Let the agent solve a problem; the reward is 1 for the right number behind its last `####`, else 0."""
    sample = Sample(read_number(asked.answer))
    if not sample.number:
        raise HTTPException(422, "the row's answer does not end with '#### ' and a number, as those of GSM8K do")
    agent = Agent[Sample](
        name="solver",
        instructions=INSTRUCTIONS,
        model=MODEL,
        model_settings=ModelSettings(**asked.sampling_params),
        tools=[calc_gsm8k_reward],
        tool_use_behavior=stop_when_right,
    )
    config = RunConfig(model_provider=ServedModel(request.app.state.client, asked.trace_id))
    try:
        ended = await Runner.run(agent, asked.question, context=sample, max_turns=asked.max_turns, run_config=config)
    except (MaxTurnsExceeded, ModelBehaviorError) as exc:  # the model's own doing
        return {"reward": 0.0, "ended_by": type(exc).__name__}
    except (APIConnectionError, InternalServerError, OSError) as exc:  # nobody's: the attempt is made again
        return {"fault": f"the model is out of reach: {exc}"}
    return {"reward": score(read_number(str(ended.final_output)), sample.number)}
