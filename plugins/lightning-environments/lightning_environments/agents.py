"""Agents that environments come with."""

from collections.abc import Callable
from typing import Any

from lightning_core.agent import LitAgent, rollout
from lightning_core.types import LLM, PromptTemplate


def one_call(fields: Callable[[Any], dict[str, Any]]) -> LitAgent[Any]:
    """Return an agent that asks the run's model once, with the prompt that is tuned, and returns what it says.

    Args:
        fields: Gives what the template's placeholders stand for in a task.
    """

    @rollout
    async def answer(task: Any, llm: LLM, prompt_template: PromptTemplate) -> str:
        from openai import AsyncOpenAI  # late: it takes a second

        given = fields(task)
        prompt = prompt_template.format(**{name: given[name] for name in prompt_template.placeholders() & given.keys()})
        async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
            completion = await client.chat.completions.create(
                model=llm.model, messages=[{"role": "user", "content": prompt}], **llm.sampling_parameters
            )
        return completion.choices[0].message.content or ""

    return answer
