"""An agent whose functions Weave traces; with the tracer `weave` they are in the store, and nowhere else."""

import re
from typing import Any

import weave
from openai import AsyncOpenAI

from lightning_core import LLM, rollout


@weave.op
def last_number(text: str) -> str | None:
    """Find the answer in what the model said."""
    found = re.findall(r"\d+", text)
    return found[-1] if found else None


@weave.op
async def ask(llm: LLM, question: str) -> str:
    """Ask the model; the call of the OpenAI client is traced by Weave's integration."""
    async with AsyncOpenAI(base_url=llm.get_base_url(), api_key=llm.api_key or "none") as client:
        answer = await client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": question}], **llm.sampling_parameters
        )
    return answer.choices[0].message.content or ""


@rollout
async def solve(task: dict[str, Any], llm: LLM) -> float:
    """Answer a question; the reward says whether the number is right."""
    return float(last_number(await ask(llm, task["question"])) == task["answer"])
