"""An agent with pydantic-ai: a model that may use a tool, as often as it wants."""

from typing import Any

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from lightning_core import LLM, PromptTemplate, rollout

Agent.instrument_all()  # its agents and tools become spans of the attempt


def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


@rollout
async def solve(task: dict[str, Any], llm: LLM, prompt_template: PromptTemplate) -> float:
    """Answer a question; the reward says whether the answer is in what the model said last."""
    async with AsyncOpenAI(base_url=llm.get_base_url(), api_key=llm.api_key or "none") as client:
        model = OpenAIChatModel(llm.model, provider=OpenAIProvider(openai_client=client))
        settings: Any = llm.sampling_parameters
        agent = Agent(model, model_settings=settings, instructions=prompt_template.format(), tools=[multiply])
        ended = await agent.run(task["question"])
    return float(task["answer"] in ended.output)
