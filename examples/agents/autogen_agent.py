"""An agent with AutoGen: a model that may use a tool, as often as it wants."""

from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

from lightning_core import LLM, PromptTemplate, rollout

INFO = ModelInfo(vision=False, function_calling=True, json_output=True, family="unknown", structured_output=True)


def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


@rollout
async def solve(task: dict[str, Any], llm: LLM, prompt_template: PromptTemplate) -> float:
    """Answer a question; the reward says whether the answer is in what the model said last."""
    model = OpenAIChatCompletionClient(
        model=llm.model,
        model_info=INFO,
        base_url=llm.get_base_url(),
        api_key=llm.api_key or "none",
        **llm.sampling_parameters,
    )
    agent = AssistantAgent(
        "solver",
        model,
        system_message=prompt_template.format(),
        tools=[multiply],
        max_tool_iterations=10,
    )
    try:
        ended = await agent.run(task=task["question"])
    finally:
        await model.close()
    return float(task["answer"] in ended.messages[-1].to_text())
