"""An agent of the OpenAI Agents SDK that answers questions about pages, with a tool that searches them."""

import os
import ssl

from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from corpus import index
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from questions import Question, same_answer

from lightning_core import PromptTemplate, emit_message, rollout

MODEL = os.environ.get("AGL_RAG_MODEL", "gpt-4.1-mini")
MAX_TURNS = 4
TLS = ssl.create_default_context()  # loading the certificates takes 20 ms, and a client is made for every task

set_tracing_disabled(True)  # else it would send its own traces to OpenAI


@function_tool
def search(query: str) -> str:
    """Return the passages of the documentation that are nearest to a query.

    Args:
        query: What to look for, in words.
    """
    return "\n\n".join(index().search(query, 2))


@rollout
async def answer(task: Question, prompt_template: PromptTemplate) -> float:
    """Return 1 for the right answer, and nothing beside it, else 0. The message is for the optimiser of the prompt."""
    async with AsyncOpenAI(http_client=DefaultAsyncHttpxClient(verify=TLS)) as client:
        agent = Agent(
            name="reader",
            model=OpenAIChatCompletionsModel(MODEL, client),
            model_settings=ModelSettings(temperature=0),
            tools=[search],
        )
        try:
            ended = await Runner.run(agent, prompt_template.format(question=task["question"]), max_turns=MAX_TURNS)
            reply = str(ended.final_output)
        except (MaxTurnsExceeded, ModelBehaviorError):
            reply = ""
    emit_message(f"Answered: {reply!r}; right is {task['answer']!r}.")
    return float(same_answer(reply, task["answer"]))
