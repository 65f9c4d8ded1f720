"""One conversation with tools, by chat, Anthropic's messages, OpenAI's responses and Gemini, each by its own client."""

import json
from collections.abc import Sequence
from typing import Any

import openai
from proxy_fixtures import Agent

Turn = dict[str, Any]
"""`say`: what the user says, and `results`: those of the tools that were called before. `forced`: the tool to call."""

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "enum": [1, 2]}},
    "required": ["a"],
    "additionalProperties": False,
}


def _plan(turns: Sequence[Turn]) -> list[tuple[str | None, list[str], bool]]:
    return [(turn.get("say"), turn.get("results", []), turn.get("forced", False)) for turn in turns]


async def by_chat(agent: Agent, turns: Sequence[Turn], **fields: Any) -> list[Any]:
    """Talk by chat, not streamed; returns the model's messages."""
    tools = [
        {"type": "function", "function": {"name": "add", "description": "adds", "parameters": SCHEMA, "strict": True}}
    ]
    said: list[Any] = [{"role": "system", "content": "be good"}]
    found: list[Any] = []
    fields |= fields.pop("extra_body", {})
    for text, results, forced in _plan(turns):
        calls = found[-1].get("tool_calls") or [] if found else []
        said += [
            {"role": "tool", "tool_call_id": call["id"], "content": result}
            for call, result in zip(calls, results, strict=True)
        ]
        said += [] if text is None else [{"role": "user", "content": text}]
        choice = {"tool_choice": {"type": "function", "function": {"name": "add"}}} if forced else {}
        async with agent.post("/chat/completions", messages=said, tools=tools, **choice, **fields) as response:
            assert response.status == 200, await response.text()
            message = (await response.json())["choices"][0]["message"]
        found.append(message)
        said.append(message)
    return found


async def by_messages(agent: Agent, turns: Sequence[Turn], *, stream: bool, **fields: Any) -> list[Any]:
    """Talk by Anthropic's messages; returns the client's messages."""
    import anthropic

    tools = [{"name": "add", "description": "adds", "input_schema": SCHEMA, "strict": True}]
    said: list[Any] = []
    found: list[Any] = []
    base = agent.base.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=base, api_key="none", max_retries=0) as client:
        for text, results, forced in _plan(turns):
            calls = [block for block in found[-1].content if block.type == "tool_use"] if found else []
            content: list[Any] = [
                {"type": "tool_result", "tool_use_id": call.id, "content": result, "is_error": place > 0}
                for place, (call, result) in enumerate(zip(calls, results, strict=True))
            ]
            content += [] if text is None else [{"type": "text", "text": text}]
            said.append({"role": "user", "content": content})
            asked: dict[str, Any] = {"model": "small", "system": "be good", "tools": tools, **fields}
            if forced:
                asked["tool_choice"] = {"type": "tool", "name": "add"}
            if stream:
                async with client.messages.stream(messages=said, **asked) as streamed:
                    answer: Any = await streamed.get_final_message()
            else:
                answer = await client.messages.create(messages=said, **asked)
            found.append(answer)
            blocks = [block.model_dump(exclude_none=True) for block in answer.content]
            said.append({"role": "assistant", "content": blocks})
    return found


async def by_responses(agent: Agent, turns: Sequence[Turn], *, stream: bool, **fields: Any) -> list[Any]:
    """Talk by OpenAI's responses; returns the client's responses."""
    tools = [{"type": "function", "name": "add", "description": "adds", "parameters": SCHEMA, "strict": True}]
    said: list[Any] = []
    found: list[Any] = []
    fields["max_output_tokens"] = fields.pop("max_tokens")
    async with openai.AsyncOpenAI(base_url=agent.base, api_key="none", max_retries=0) as client:
        for text, results, forced in _plan(turns):
            calls = [item for item in found[-1].output if item.type == "function_call"] if found else []
            said += [
                {"type": "function_call_output", "call_id": call.call_id, "output": result}
                for call, result in zip(calls, results, strict=True)
            ]
            said += [] if text is None else [{"role": "user", "content": [{"type": "input_text", "text": text}]}]
            asked: dict[str, Any] = {"model": "small", "instructions": "be good", "tools": tools, "store": False}
            if forced:
                asked["tool_choice"] = {"type": "function", "name": "add"}
            if stream:
                answer: Any = None
                async with client.responses.stream(input=said, **asked, **fields) as streamed:
                    async for event in streamed:
                        answer = getattr(event, "response", answer)
            else:
                answer = await client.responses.create(input=said, **asked, **fields)
            found.append(answer)
            said += [json.loads(item.model_dump_json(exclude={"parsed_arguments"})) for item in answer.output]
    return found


async def by_gemini(agent: Agent, turns: Sequence[Turn], *, stream: bool, **fields: Any) -> list[Any]:
    """Talk by Gemini's API; returns the client's responses, of a stream the last one with the parts of all."""
    from google import genai
    from google.genai import types

    def part(call: Any, result: str) -> Any:
        response = types.FunctionResponse(id=call.id, name=call.name, response={"output": result})
        return types.Part(function_response=response)

    declared = types.FunctionDeclaration(name="add", description="adds", parameters_json_schema=SCHEMA)
    config: dict[str, Any] = {
        "system_instruction": "be good",
        "tools": [types.Tool(function_declarations=[declared])],
        "max_output_tokens": fields.pop("max_tokens"),
        **fields,
    }
    found: list[Any] = []
    said: list[Any] = []
    options = types.HttpOptions(base_url=agent.base.removesuffix("/v1"))
    async with genai.Client(api_key="none", http_options=options).aio as client:
        for text, results, forced in _plan(turns):
            calls = found[-1].function_calls or [] if found else []
            parts = [part(call, result) for call, result in zip(calls, results, strict=True)]
            parts += [] if text is None else [types.Part(text=text)]
            said.append(types.Content(role="user", parts=parts))
            choice = types.FunctionCallingConfig(
                mode=types.FunctionCallingConfigMode.ANY, allowed_function_names=["add"]
            )
            tool_config = types.ToolConfig(function_calling_config=choice) if forced else None
            asked: dict[str, Any] = {
                "model": "small",
                "contents": said,
                "config": {**config, "tool_config": tool_config},
            }
            if stream:
                pieces = [each async for each in await client.models.generate_content_stream(**asked)]
                answer: Any = pieces[-1]
                said = said + [piece.candidates[0].content for piece in pieces]
                whole = [each for piece in pieces for each in piece.candidates[0].content.parts]
                answer.candidates[0].content = types.Content(role="model", parts=whole)
            else:
                answer = await client.models.generate_content(**asked)
                said = [*said, answer.candidates[0].content]
            found.append(answer)
    return found
