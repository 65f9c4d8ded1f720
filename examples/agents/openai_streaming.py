"""An agent with the OpenAI SDK that reads the answer while it is being made."""

from typing import Any

from openai import AsyncOpenAI

from lightning_core import LLM, rollout


@rollout
async def solve(task: dict[str, Any], llm: LLM) -> float:
    """Answer a question; the reward is higher for an answer that comes early."""
    said, pieces = "", 0
    async with AsyncOpenAI(base_url=llm.get_base_url(), api_key=llm.api_key or "none") as client:
        stream = await client.chat.completions.create(
            model=llm.model,
            messages=[{"role": "user", "content": task["question"]}],
            stream=True,
            **llm.sampling_parameters,
        )
        async for chunk in stream:
            pieces += 1
            said += "".join(choice.delta.content or "" for choice in chunk.choices)
    return 1.0 / pieces if task["answer"] in said else 0.0
