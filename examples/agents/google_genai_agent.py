"""An agent with Google's client, and a tool. It reads what `ProxyLLM` gives; a program has it in `GEMINI_API_KEY` and
`GOOGLE_GEMINI_BASE_URL`."""

from typing import Any

from google import genai
from google.genai import types

from lightning_core import LLM, PromptTemplate, rollout


def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


@rollout
async def solve(task: Any, llm: LLM, prompt_template: PromptTemplate) -> float:
    options = types.HttpOptions(base_url=llm.endpoint)
    async with genai.Client(api_key=llm.api_key or "none", http_options=options).aio as client:
        config = types.GenerateContentConfig(system_instruction=prompt_template.template, tools=[multiply])
        chat = client.chats.create(model=llm.model, config=config)
        answer = await chat.send_message(task["question"])
    return float(task["answer"] in (answer.text or ""))
