"""An agent that asks a model one question with options, and is scored against the right one."""

import re
import ssl

from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from recorded_data import Question

from lightning_core import PromptTemplate, emit_message, rollout

MODEL = "code-davinci-002"
OPTION = re.compile(r"\([A-Z]\)|\b(?:Yes|No)\b")

# Loading the certificates takes 20 ms; a client is made for every question, this but once.
TLS = ssl.create_default_context()


@rollout
async def solve(task: Question, prompt_template: PromptTemplate) -> float:
    """Answer one question; the messages are for the optimiser of the prompt.

    Returns:
        The reward, see `grade`.
    """
    return judge(task, await ask(prompt_template.format(question=task["question"])))


def judge(task: Question, reply: str) -> float:
    """Return the reward, see `grade`; describe the result in messages."""
    reward, remark = grade(reply, task["target"])
    emit_message(f"Reply: {reply}")
    emit_message(remark)
    return reward


async def ask(prompt: str) -> str:
    """Return the model's reply to this one message."""
    async with AsyncOpenAI(http_client=DefaultAsyncHttpxClient(verify=TLS)) as client:
        completion = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": prompt}], temperature=0
        )
    return completion.choices[0].message.content or ""


def grade(reply: str, target: str) -> tuple[float, str]:
    """Return the reward and what was wrong: 1.0 when the last option that the reply names is right, else 0.0."""
    answer = last_option(reply)
    if answer is None:
        return 0.0, "The reply names no option, such as (A) or Yes."
    if answer != target:
        return 0.0, f"The last option that the reply names is {answer}; right is {target}."
    return 1.0, "The answer is right."


def last_option(reply: str) -> str | None:
    """Return the last `(A)`, `(B)`, ... or `Yes` or `No` in the reply, or None when there is none."""
    options: list[str] = OPTION.findall(reply)
    return options[-1] if options else None
