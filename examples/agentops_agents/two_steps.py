"""An agent whose steps are marked with AgentOps' decorators: a draft, and a second look at it."""
# mypy: disable-error-code="import-untyped,untyped-decorator"

from typing import Any

import agentops
from openai import AsyncOpenAI

from lightning_core import LLM, rollout


@agentops.operation(name="draft")
async def draft(client: AsyncOpenAI, model: str, question: str) -> str:
    """Answer as it comes."""
    answer = await client.chat.completions.create(model=model, messages=[{"role": "user", "content": question}])
    return answer.choices[0].message.content or ""


@agentops.operation(name="review")
async def review(client: AsyncOpenAI, model: str, question: str, draft: str) -> str:
    """Look at an answer again."""
    asked = f"{question}\n\nSomebody answered: {draft}\nGive the right answer."
    answer = await client.chat.completions.create(model=model, messages=[{"role": "user", "content": asked}])
    return answer.choices[0].message.content or ""


@rollout
async def solve(task: dict[str, Any], llm: LLM) -> float:
    """Answer a question in two steps; the reward says whether the answer is in what was said last."""
    async with AsyncOpenAI(base_url=llm.get_base_url(), api_key=llm.api_key or "none") as client:
        first = await draft(client, llm.model, task["question"])
        last = await review(client, llm.model, task["question"], first)
    return float(task["answer"] in last)
