"""A program that reports to AgentOps by itself: `agentops.init()`, one call of a model, the end."""
# mypy: disable-error-code="import-untyped,untyped-decorator"

import os
import sys

import agentops
from openai import OpenAI

agentops.init(trace_name="program")


@agentops.operation(name="answer")
def answer(question: str) -> str:
    """Ask the model."""
    with OpenAI() as client:  # OPENAI_BASE_URL and OPENAI_API_KEY
        said = client.chat.completions.create(
            model=os.environ.get("AGL_MODEL", "small"), messages=[{"role": "user", "content": question}]
        )
    return said.choices[0].message.content or ""


print(answer(sys.argv[1]))
agentops.end_trace()
