"""An agent with DSPy: a module that may use a tool, as often as it wants."""

from typing import Any

import dspy

from lightning_core import LLM, PromptTemplate, operation, rollout


@operation  # DSPy records nothing here: so the tool's use is a span
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


@rollout
async def solve(task: dict[str, Any], llm: LLM, prompt_template: PromptTemplate) -> float:
    """Answer a question; the reward says whether the answer is in what the model said last."""
    model = dspy.LM(
        f"openai/{llm.model}",
        api_base=llm.get_base_url(),
        api_key=llm.api_key or "none",
        cache=False,  # else a second try of a task would be given the first one's answers
        **llm.sampling_parameters,
    )
    agent = dspy.ReAct(dspy.Signature("question -> answer", prompt_template.format()), tools=[multiply])
    with dspy.context(lm=model):
        ended = await agent.acall(question=task["question"])
    return float(task["answer"] in ended.answer)
