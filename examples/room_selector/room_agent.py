"""An agent that finds a meeting room, with a tool that says which rooms there are."""

import json
import os
import ssl
from typing import cast

from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from rooms import Task, describe, look_up

from lightning_core import PromptTemplate, emit_message, rollout

MODEL = os.environ.get("AGL_ROOMS_MODEL", "gpt-4.1-mini")
MAX_TURNS = 4
TLS = ssl.create_default_context()  # loading the certificates takes 20 ms, and a client is made for every task

TOOL: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "look_up_rooms",
        "description": "All meeting rooms: capacity, equipment, distance, and whether each is free at that time.",
        "parameters": {
            "type": "object",
            "properties": {
                "date": {"type": "string", "description": "As in 2025-10-13."},
                "time": {"type": "string", "description": "As in 14:30."},
                "minutes": {"type": "integer", "description": "How long the meeting is."},
            },
            "required": ["date", "time", "minutes"],
        },
    },
}


@rollout
async def select_room(task: Task, prompt_template: PromptTemplate) -> float:
    """Return 1 for the right room, else 0. The message is for the optimiser of the prompt."""
    reply = await ask(prompt_template.format(request=describe(task)))
    chosen = reply.strip().rpartition("\n")[2].strip(" .*`")
    emit_message(f"Chosen: {chosen!r}; right is {task['expected']!r}.")
    return float(chosen == task["expected"])


async def ask(prompt: str) -> str:
    """Return the model's last word, after the tool calls that it asks for."""
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": prompt}]
    async with AsyncOpenAI(http_client=DefaultAsyncHttpxClient(verify=TLS)) as client:
        for _ in range(MAX_TURNS):
            completion = await client.chat.completions.create(
                model=MODEL, messages=messages, tools=[TOOL], temperature=0
            )
            message = completion.choices[0].message
            calls = [call for call in message.tool_calls or [] if call.type == "function"]
            if not calls:
                return message.content or ""
            said = message.model_dump(include={"role", "content", "tool_calls"})
            messages.append(cast(ChatCompletionMessageParam, said))
            for call in calls:
                result = call_tool(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return ""


def call_tool(arguments: str) -> str:
    """Return the rooms as JSON; what a model got wrong is a result too, so that it can try again."""
    try:
        return json.dumps(look_up(**json.loads(arguments)))
    except (ValueError, TypeError) as exc:
        return json.dumps({"error": f"cannot look up rooms with {arguments}: {exc}"})
