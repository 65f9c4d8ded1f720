"""A local OpenAI-compatible endpoint whose answers come from a Python function.

It lets an example run with no account and no network. The agent and the optimiser talk to it over HTTP, exactly as
they would talk to a real model.
"""

import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, NamedTuple
from uuid import uuid4

from aiohttp import web
from pydantic import BaseModel, ValidationError


class ChatMessage(BaseModel):
    """One message of a conversation. Only plain text is understood, no parts and no images."""

    role: str
    content: str | None = None


class ChatRequest(BaseModel):
    """What a chat-completions request says, as far as the examples look at it."""

    model: str
    messages: list[ChatMessage]
    seed: int = 0
    stream: bool = False

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


Answer = Callable[[ChatRequest], str | list[ToolCall]]
"""Stands in for a model: a request in, a text or tool calls out."""


@asynccontextmanager
async def serve(answer: Answer) -> AsyncIterator[str]:
    """Serve `answer` on a free port of 127.0.0.1, in the running loop.

    Yields:
        The base URL for a client, `/v1` included. Nothing is left running after the block.
    """

    async def complete(http_request: web.Request) -> web.Response:
        try:
            request = ChatRequest.model_validate_json(await http_request.read())
            if request.stream:
                raise CannotAnswer("this endpoint does not stream; send the request without stream=true")
            reply = answer(request)
        except (ValidationError, CannotAnswer) as exc:
            return web.json_response({"error": {"message": str(exc), "type": "invalid_request_error"}}, status=400)
        return web.json_response(_completion(request.model, reply))

    app = web.Application(client_max_size=16 * 1024**2)
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


class LocalEndpoint:
    """A hook that serves a stand-in for a model for as long as a run lasts.

    While the run lasts, `OPENAI_BASE_URL` and `OPENAI_API_KEY` lead to it. At its end they are as before.
    """

    def __init__(self, answer: Answer, *, notice: str, yield_to_key: bool) -> None:
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


def _completion(model: str, reply: str | list[ToolCall]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply if isinstance(reply, str) else None}
    if not isinstance(reply, str):
        message["tool_calls"] = [
            {
                "id": f"call_{position}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for position, call in enumerate(reply)
        ]
    finish_reason = "stop" if isinstance(reply, str) else "tool_calls"
    return {
        "id": f"chatcmpl-{uuid4().hex}",  # calls are told apart by it
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
    }
