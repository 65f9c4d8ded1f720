"""An agent with Google ADK: a program in an environment of its own, which knows nothing of Lightning Core."""

import asyncio
import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else LiteLLM asks the network for prices

from google.adk.agents import Agent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner


def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


async def solve() -> float:
    """Answer a question; the reward says whether the answer is in what the model said last."""
    sampling = json.loads(os.environ["AGL_SAMPLING_PARAMETERS"])
    model = LiteLlm(f"openai/{os.environ['AGL_MODEL']}", **sampling)  # it reads OPENAI_BASE_URL and its key
    agent = Agent(name="solver", model=model, instruction=os.environ["AGL_PROMPT"], tools=[multiply])
    events = await InMemoryRunner(agent=agent).run_debug(os.environ["QUESTION"], quiet=True)
    said = "".join(part.text or "" for part in events[-1].content.parts)
    return float(os.environ["ANSWER"] in said)


print(asyncio.run(solve()))  # the last line that a program prints is its reward
