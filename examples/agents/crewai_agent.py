"""An agent with CrewAI: a model that may use a tool, as often as it wants."""

import os
from typing import Any

os.environ.update(CREWAI_DISABLE_TELEMETRY="true", CREWAI_TRACING_ENABLED="false")  # else it reports to crewai.com

import crewai
from crewai.tools import tool

from lightning_core import LLM, PromptTemplate, operation, rollout


@operation  # CrewAI records nothing here: so the tool's use is a span
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


@rollout
async def solve(task: dict[str, Any], llm: LLM, prompt_template: PromptTemplate) -> float:
    """Answer a question; the reward says whether the answer is in what the model said last."""
    model = crewai.LLM(
        model=llm.model,
        provider="openai",
        base_url=llm.get_base_url(),
        api_key=llm.api_key or "none",
        **llm.sampling_parameters,
    )
    solver = crewai.Agent(
        role="solver", goal="Answer", backstory=prompt_template.format(), llm=model, tools=[tool(multiply)]
    )
    asked = crewai.Task(description=task["question"], expected_output="the answer", agent=solver)
    ended = await crewai.Crew(agents=[solver], tasks=[asked]).akickoff()
    return float(task["answer"] in ended.raw)
