"""An agent with the OpenAI SDK, as a coroutine: many of them run at the same time in one thread."""

from typing import Any

from openai import AsyncOpenAI

from lightning_core import LLM, rollout


@rollout
async def solve(task: dict[str, Any], llm: LLM) -> float:
    """Answer a question; the reward says whether the answer is in what the model said."""
    async with AsyncOpenAI(base_url=llm.get_base_url(), api_key=llm.api_key or "none") as client:
        answer = await client.chat.completions.create(
            model=llm.model,
            messages=[{"role": "user", "content": task["question"]}],
            **llm.sampling_parameters,
        )
    return float(task["answer"] in (answer.choices[0].message.content or ""))
