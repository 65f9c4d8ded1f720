"""Agents that environments come with."""

from collections.abc import Mapping
from typing import Any

from lightning_core.agent import rollout
from lightning_core.types import LLM, PromptTemplate


@rollout
async def one_call(task: Any, llm: LLM, prompt_template: PromptTemplate) -> str:
    """Ask the run's model once, with the prompt that is tuned, and return what it says.

    The template's placeholders are fields of the task; of a task without fields, `question` is all of it.
    """
    from openai import AsyncOpenAI  # late: it takes a second

    given = task if isinstance(task, Mapping) else {"question": task}
    prompt = prompt_template.format(**{name: given[name] for name in prompt_template.placeholders() & given.keys()})
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
        completion = await client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": prompt}], **llm.sampling_parameters
        )
    return completion.choices[0].message.content or ""
