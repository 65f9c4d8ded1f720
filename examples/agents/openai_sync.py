"""An agent with the OpenAI SDK, as a plain function: it runs in a thread of its own."""

from typing import Any

from openai import OpenAI

from lightning_core import LLM, rollout


@rollout
def solve(task: dict[str, Any], llm: LLM) -> float:
    """Answer a question; the reward says whether the answer is in what the model said."""
    with OpenAI(base_url=llm.get_base_url(), api_key=llm.api_key or "none") as client:
        answer = client.chat.completions.create(
            model=llm.model,
            messages=[{"role": "user", "content": task["question"]}],
            **llm.sampling_parameters,
        )
    return float(task["answer"] in (answer.choices[0].message.content or ""))
