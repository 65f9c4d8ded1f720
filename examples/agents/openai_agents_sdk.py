"""An agent with the OpenAI Agents SDK: a model that may use a tool, as often as it wants."""

from typing import Any

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

from lightning_core import LLM, PromptTemplate, rollout

set_tracing_disabled(True)  # else it would send its own traces to OpenAI


@function_tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


@rollout
async def solve(task: dict[str, Any], llm: LLM, prompt_template: PromptTemplate) -> float:
    """Answer a question; the reward says whether the answer is in what the model said last."""
    async with AsyncOpenAI(base_url=llm.get_base_url(), api_key=llm.api_key or "none") as client:
        agent = Agent(
            name="solver",
            instructions=prompt_template.format(),
            model=OpenAIChatCompletionsModel(llm.model, client),
            model_settings=ModelSettings(**llm.sampling_parameters),
            tools=[multiply],
        )
        ended = await Runner.run(agent, task["question"])
    return float(task["answer"] in str(ended.final_output))
