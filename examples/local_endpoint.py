"""A local OpenAI-compatible endpoint whose answers come from a Python function.

It lets an example run with no account and no network. The agent and the optimiser talk to it over HTTP, exactly as
they would talk to a real model. Asked for token ids, it gives them as vLLM does; a token is a character.
"""

import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, NamedTuple
from uuid import uuid4

from aiohttp import web
from pydantic import BaseModel, ValidationError, field_validator


class ChatMessage(BaseModel):
    """One message of a conversation. Only text is understood, in one piece or in parts."""

    role: str
    content: str | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _join_parts(cls, content: Any) -> Any:
        if not isinstance(content, list):
            return content
        return "".join(part["text"] for part in content if isinstance(part, dict) and part.get("type") == "text")


class ChatRequest(BaseModel):
    """What a chat-completions request says, as far as the examples look at it."""

    model: str
    messages: list[ChatMessage]
    seed: int = 0
    stop: list[str] = []
    stream: bool = False
    stream_options: dict[str, Any] = {}
    logprobs: bool = False
    return_token_ids: bool = False

    @property
    def prompt(self) -> str:
        """The texts of the system and the user, joined by blank lines."""
        return "\n\n".join(message.content or "" for message in self.messages if message.role in ("system", "user"))

    @property
    def tool_results(self) -> list[str]:
        """What the tools answered so far, oldest first."""
        return [message.content or "" for message in self.messages if message.role == "tool"]


class ToolCall(NamedTuple):
    """A tool that the model wants to be called, with the arguments by name."""

    name: str
    arguments: dict[str, Any]


class CannotAnswer(ValueError):
    """The endpoint has nothing to say to this request; the client gets status 400 with the text."""


PLAYED = "PLAYED model: OPENAI_API_KEY is not set, so a stand-in on this machine answers."

Answer = Callable[[ChatRequest], str | list[ToolCall]]
"""Stands in for a model: a request in, a text or tool calls out."""


@asynccontextmanager
async def serve(answer: Answer, *, port: int = 0) -> AsyncIterator[str]:
    """Serve `answer` on a port of 127.0.0.1, in the running loop.

    Args:
        answer: The stand-in.
        port: Where; 0 for any free one.

    Yields:
        The base URL for a client, `/v1` included. Nothing is left running after the block.
    """

    async def complete(http_request: web.Request) -> web.StreamResponse:
        try:
            request = ChatRequest.model_validate_json(await http_request.read())
            reply = answer(request)
        except (ValidationError, CannotAnswer) as exc:
            return web.json_response({"error": {"message": str(exc), "type": "invalid_request_error"}}, status=400)
        completion = _completion(request, reply)
        return await _stream(http_request, request, completion) if request.stream else web.json_response(completion)

    app = web.Application(client_max_size=16 * 1024**2)
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


class LocalEndpoint:
    """A hook that serves a stand-in for a model for as long as a run lasts.

    While the run lasts, `OPENAI_BASE_URL` and `OPENAI_API_KEY` lead to it. At its end they are as before.
    """

    def __init__(self, answer: Answer, *, notice: str = PLAYED, yield_to_key: bool = True) -> None:
        """Start nothing yet.

        Args:
            answer: The stand-in.
            notice: Printed once a run begins, for the person who started it.
            yield_to_key: Do nothing where `OPENAI_API_KEY` is set, so that the run uses the real model.
        """
        self._answer = answer
        self._notice = notice
        self._yield_to_key = yield_to_key
        self._running = AsyncExitStack()

    async def lightning_run_start(self, run_id: str) -> None:
        """Serve, and lead this process's OpenAI clients here."""
        if self._yield_to_key and os.environ.get("OPENAI_API_KEY"):
            return
        async with AsyncExitStack() as stack:
            url = await stack.enter_async_context(serve(self._answer))
            stack.enter_context(_environment(OPENAI_BASE_URL=url, OPENAI_API_KEY="local"))
            print(self._notice, file=sys.stderr, flush=True)
            self._running = stack.pop_all()

    async def lightning_run_end(self, run_id: str, status: str) -> None:
        """Restore the environment and stop serving."""
        await self._running.aclose()


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _completion(request: ChatRequest, reply: str | list[ToolCall]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    choice: dict[str, Any] = {"index": 0, "message": message}
    completion: dict[str, Any] = {
        "id": f"chatcmpl-{uuid4().hex}",  # calls are told apart by it
        "object": "chat.completion",
        "created": 0,
        "model": request.model,
        "choices": [choice],
    }
    if isinstance(reply, str):
        message["content"] = text = _stopped(reply, request.stop)
        choice["finish_reason"] = "stop"
        prompt = "".join(f"{said.role}: {said.content or ''}\n" for said in request.messages) + "assistant: "
        completion["usage"] = {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(text),
            "total_tokens": len(prompt) + len(text),
        }
        if request.return_token_ids:
            completion["prompt_token_ids"] = [ord(character) for character in prompt]
            choice["token_ids"] = [ord(character) for character in text]
        if request.logprobs:  # the same request gives the same reply, so it is certain
            choice["logprobs"] = {"content": [{"token": character, "logprob": 0.0} for character in text]}
    else:
        message["tool_calls"] = [
            {
                "id": f"call_{len(request.messages)}_{position}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for position, call in enumerate(reply)
        ]
        choice["finish_reason"] = "tool_calls"
    return completion


def _stopped(reply: str, stop: list[str]) -> str:
    return reply[: min((at for end in stop if (at := reply.find(end)) >= 0), default=len(reply))]


async def _stream(http_request: web.Request, request: ChatRequest, completion: dict[str, Any]) -> web.StreamResponse:
    """Send a completion in two pieces, the answer and its end, and its usage if that is asked for."""
    [choice] = completion.pop("choices")
    usage = completion.pop("usage", None)
    head = {**completion, "object": "chat.completion.chunk"}
    delta, reason = choice.pop("message"), choice.pop("finish_reason")
    for position, call in enumerate(delta.get("tool_calls", ())):
        call["index"] = position
    chunks = [
        {**head, "choices": [{**choice, "delta": delta, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
    ]
    if request.stream_options.get("include_usage") and usage is not None:
        chunks.append({**head, "choices": [], "usage": usage})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(http_request)
    for chunk in chunks:
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response
