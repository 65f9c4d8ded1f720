"""A model of tokens for tests: a tokenizer of characters, and engines that say what they are told to."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import openai
from lightning_tokens import Generated

END = 1
PAIR = 2
"""One token for `ab`, which the tokenizer itself never uses: text alone does not lead back to it."""


class Letters:
    """A tokenizer with a token for each character, and one for the end of a turn."""

    eos_token_id = END

    def apply_chat_template(self, conversation: Any, **options: Any) -> str:
        lines = []
        for message in conversation:
            calls = "".join(
                f"<tool_call>{json.dumps(call['function'])}</tool_call>" for call in message.get("tool_calls") or ()
            )
            lines.append(f"{message['role'][0]}:{message['content']}{calls}\x01\n")
        tools = f"T{len(options['tools'])}\n" if options["tools"] else ""
        return tools + "".join(lines) + ("a:" if options["add_generation_prompt"] else "")

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        text = "".join("ab" if token == PAIR else chr(token) for token in token_ids)
        return text.replace("\x01", "") if skip_special_tokens else text


class Engine:
    """Says what it is told to."""

    def __init__(self, *answers: list[int] | str) -> None:
        self.answers = list(answers)
        self.prompts: list[list[int]] = []
        self.sampling: list[Mapping[str, Any]] = []
        self.ids: list[str] = []
        self.failure: Exception | None = None

    async def generate(self, prompt_ids: list[int], sampling: Mapping[str, Any], *, request_id: str) -> Generated:
        if self.failure is not None:
            raise self.failure
        self.prompts.append(prompt_ids)
        self.sampling.append(sampling)
        self.ids.append(request_id)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        ids = answer if isinstance(answer, list) else [*map(ord, answer), END]
        return Generated(ids, [-token / 1000 for token in ids], "stop" if ids[-1] == END else "length")


class StreamingEngine(Engine):
    async def stream(
        self, prompt_ids: list[int], sampling: Mapping[str, Any], *, request_id: str
    ) -> AsyncIterator[Generated]:
        whole = await self.generate(prompt_ids, sampling, request_id=request_id)
        for place, token in enumerate(whole.token_ids):
            is_last = place + 1 == len(whole.token_ids)
            yield Generated([token], [-token / 1000], whole.finish_reason if is_last else None)


async def converse(agent: Any, turns: int, stream: bool, **more: Any) -> list[dict[str, Any]]:
    """Talk as a client does that sends back the messages that it got."""
    client = openai.AsyncOpenAI(base_url=agent.base, api_key="none", max_retries=0)
    said: list[Any] = []
    try:
        for turn in range(turns):
            said.append({"role": "user", "content": f"q{turn}"})
            if not stream:
                answer = await client.chat.completions.create(model="small", messages=said, **more)
                message: dict[str, Any] = answer.choices[0].message.model_dump()
            else:
                text, calls, thought = "", [], ""
                async for chunk in await client.chat.completions.create(
                    model="small", messages=said, stream=True, **more
                ):
                    text += chunk.choices[0].delta.content or ""
                    thought += getattr(chunk.choices[0].delta, "reasoning_content", None) or ""
                    calls += [call.model_dump() for call in chunk.choices[0].delta.tool_calls or ()]
                message = {"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})}
                message |= {"reasoning_content": thought} if thought else {}
            said.append(message)
    finally:
        await client.close()
    return said
