"""A model's server for tests: it answers as vLLM does, and fails on request.

A token is a character: its id is its code. So a test sees at once what the engine saw.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

from lightning_core.concurrency import Startable
from lightning_proxy.apis import CONVERTIBLE, ConvertibleDialect

Fault = Literal["dies", "dies_mid_stream", "ends_early", "garbage", "never"]
"""How a call goes wrong: the connection is closed before the answer, in the middle of it, or as if all were well; what
comes is not JSON; nothing comes."""

Reply = str | dict[str, Any]
"""What the assistant says: a text, or fields of its message, such as `tool_calls`."""


@dataclass(slots=True)
class Received:
    """A call that came."""

    path: str
    headers: dict[str, str]
    fields: dict[str, Any]
    body: bytes = field(repr=False)


def tokens_of(text: str) -> list[int]:
    """Return a text's tokens."""
    return [ord(character) for character in text]


def render(messages: Sequence[dict[str, Any]]) -> str:
    """Return the prompt of a conversation: each turn on a line, and the beginning of the next."""
    lines = [f"{message['role'][0]}:{_plain(message)}\n" for message in messages]
    return "".join([*lines, "a:"])


class FakeEngine(Startable):
    """Serves a model on a free port of this machine.

    Everything may be changed while it runs.

    Args:
        replies: What it says, one after the other, and then the last one again and again.
    """

    def __init__(self, replies: Sequence[Reply] = ("ok",)) -> None:
        self.replies: list[Reply] = list(replies)
        self.faults: list[Fault | int | None] = []
        """How the next calls go wrong, one after the other; an integer is an HTTP status."""
        self.gives_tokens = True
        """Whether it answers `return_token_ids`; else it ignores that."""
        self.retry_after: str | None = None
        """The header of answers with a status."""
        self.max_model_len = 4096
        """How long a prompt of `/completions` and its answer may be together, in tokens."""
        self.hold: asyncio.Event | None = None
        """Where it is, an answer waits for it: before a whole one, and after the first piece of a stream."""
        self.received: list[Received] = []
        self.began = asyncio.Event()
        """Set by each call that comes."""
        self.cancelled = asyncio.Event()
        """Set when a client goes away from a call."""
        self.open_calls = 0
        self.pieces_written = 0
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self.port = 0
        self._number = 0

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def start(self) -> None:
        """Listen; on the same port as before where it was stopped."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self._call(self._chat))
        app.router.add_post("/v1/completions", self._call(self._completion))
        app.router.add_post("/v1/embeddings", self._call(self._embeddings))
        for path in ("/responses", "/messages"):
            app.router.add_post(f"/v1{path}", self._call(self._converted(CONVERTIBLE[path])))
        app.router.add_get("/v1/models", self._models)
        app.router.add_route("*", "/v1/{rest:.*}", self._echo)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await self._site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close the port and all connections."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def _call(self, answer: Callable[[web.Request, dict[str, Any]], Any]) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            fields = json.loads(body)
            self.received.append(Received(request.path, dict(request.headers), fields, body))
            self.began.set()
            self.open_calls += 1
            try:
                fault = self.faults.pop(0) if self.faults else None
                failed = await self._fail(request, fields, fault)
                if failed is not None:
                    return failed
                told = fields if self.gives_tokens else {**fields, "return_token_ids": None}
                response: web.StreamResponse = await answer(request, {**told, "_fault": fault})
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            except ConnectionResetError:
                self.cancelled.set()
                return web.Response()
            else:
                return response
            finally:
                self.open_calls -= 1

        return handle

    async def _fail(
        self, request: web.Request, fields: dict[str, Any], fault: Fault | int | None
    ) -> web.StreamResponse | None:
        if isinstance(fault, int):
            error = {"message": f"told to answer {fault}", "type": "test", "param": None, "code": fault}
            headers = {} if self.retry_after is None else {"retry-after": self.retry_after}
            return web.json_response({"error": error}, status=fault, headers=headers)
        if fault == "garbage":
            return web.Response(text="<html>it works</html>", content_type="text/html")
        if fault == "dies" and request.transport is not None:
            request.transport.close()
            return web.Response()
        if fault == "never":
            await asyncio.Event().wait()
        return None

    def _next_reply(self) -> dict[str, Any]:
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        self._number += 1
        return {"content": reply} if isinstance(reply, str) else {"content": None, **reply}

    # Chat

    async def _chat(self, request: web.Request, fields: dict[str, Any]) -> web.StreamResponse:
        prompt = tokens_of(render(fields["messages"]))
        choices = [self._next_reply() for _ in range(fields.get("n") or 1)]
        if fields.get("stream"):
            return await self._send(request, fields, self._chat_chunks(fields, prompt, choices))
        if self.hold is not None:
            await self.hold.wait()
        return web.json_response(self._whole_chat(fields, prompt, choices))

    def _whole_chat(
        self, fields: dict[str, Any], prompt: list[int], choices: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        return {
            **self._head(fields),
            "object": "chat.completion",
            "choices": [
                {
                    "index": index,
                    "message": {"role": "assistant", **reply},
                    "logprobs": self._logprobs(fields, _plain(reply)),
                    "finish_reason": _reason(reply),
                    "token_ids": self._ids(fields, _plain(reply)),
                }
                for index, reply in enumerate(choices)
            ],
            "usage": _usage(prompt, choices),
            "prompt_token_ids": prompt if fields.get("return_token_ids") else None,
        }

    async def _chat_chunks(
        self, fields: dict[str, Any], prompt: list[int], choices: Sequence[dict[str, Any]]
    ) -> AsyncIterator[dict[str, Any]]:
        head = {**self._head(fields), "object": "chat.completion.chunk"}
        ids = {"prompt_token_ids": prompt} if fields.get("return_token_ids") else {}
        for index, _ in enumerate(choices):
            yield {**head, "choices": [_chunk(index, {"role": "assistant", "content": ""})], **ids}
        for index, reply in enumerate(choices):
            for delta, text in _deltas(reply):
                tokens = {"logprobs": self._logprobs(fields, text), "token_ids": self._ids(fields, text)}
                yield {**head, "choices": [_chunk(index, delta) | tokens]}
            yield {**head, "choices": [_chunk(index, {"content": ""}) | {"finish_reason": _reason(reply)}]}
        if (fields.get("stream_options") or {}).get("include_usage"):
            yield {**head, "choices": [], "usage": _usage(prompt, choices)}

    def _head(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {"id": f"chatcmpl-{self._number}", "created": 1, "model": fields["model"]}

    def _ids(self, fields: dict[str, Any], text: str) -> list[int] | None:
        return tokens_of(text) if fields.get("return_token_ids") else None

    def _logprobs(self, fields: dict[str, Any], text: str) -> dict[str, Any] | None:
        if not fields.get("logprobs"):
            return None
        content: list[dict[str, Any]] = [
            {"token": character, "logprob": -ord(character) / 1000, "bytes": None, "top_logprobs": []}
            for character in text
        ]
        return {"content": content}

    async def _send(
        self, request: web.Request, fields: dict[str, Any], chunks: AsyncIterator[dict[str, Any]]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        fault = fields["_fault"]
        number = 0
        async for chunk in chunks:
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            self.pieces_written += 1
            number += 1
            if number == 2 and fault == "dies_mid_stream" and request.transport is not None:
                request.transport.abort()
                return response
            if number == 2 and fault == "ends_early":
                await response.write_eof()
                return response
            if number == 1 and self.hold is not None:
                await self.hold.wait()
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    # The other APIs

    async def _models(self, _: web.Request) -> web.Response:
        model = {"id": "small", "object": "model", "created": 1, "owned_by": "vllm", "root": "small", "parent": None}
        return web.json_response({"object": "list", "data": [{**model, "max_model_len": self.max_model_len}]})

    async def _completion(self, request: web.Request, fields: dict[str, Any]) -> web.StreamResponse:
        given = fields["prompt"]
        prompt = given if isinstance(given, list) else tokens_of(given)
        if len(prompt) >= self.max_model_len:
            message = (
                f"This model's maximum context length is {self.max_model_len} tokens. However, your prompt contains "
                f"{len(prompt)} input tokens, which exceeds this limit even without any output tokens. Please reduce "
                f"the length of the input prompt. (parameter=input_tokens, value={len(prompt)})"
            )
            error = {"message": message, "type": "BadRequestError", "param": "input_tokens", "code": 400}
            return web.json_response({"error": error}, status=400)
        whole = str(self._next_reply()["content"])
        text = whole[: min(fields.get("max_tokens") or 16, self.max_model_len - len(prompt))]
        reason = "stop" if text == whole else "length"
        head = {**self._head(fields), "object": "text_completion"}
        asked = fields.get("return_token_ids")

        def choice(text: str, reason: str | None, prompt: list[int] | None) -> dict[str, Any]:
            values = [-ord(character) / 1000 for character in text]
            return {
                "index": 0,
                "text": text,
                "logprobs": None if fields.get("logprobs") is None else {"token_logprobs": values},
                "finish_reason": reason,
                "token_ids": tokens_of(text) if asked else None,
                "prompt_token_ids": prompt if asked else None,
            }

        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(text), "total_tokens": len(prompt) + len(text)}
        if not fields.get("stream"):
            return web.json_response({**head, "choices": [choice(text, reason, prompt)], "usage": usage})

        async def chunks() -> AsyncIterator[dict[str, Any]]:
            for place, character in enumerate(text):
                ended = reason if place + 1 == len(text) else None
                yield {**head, "choices": [choice(character, ended, None if place else prompt)]}
            if (fields.get("stream_options") or {}).get("include_usage"):
                yield {**head, "choices": [], "usage": usage}

        return await self._send(request, fields, chunks())

    async def _embeddings(self, _: web.Request, fields: dict[str, Any]) -> web.StreamResponse:
        data = [{"object": "embedding", "index": 0, "embedding": [0.5, -0.5]}]
        usage = {"prompt_tokens": len(str(fields["input"])), "total_tokens": len(str(fields["input"]))}
        return web.json_response({"object": "list", "data": data, "model": fields["model"], "usage": usage})

    def _converted(self, dialect: ConvertibleDialect) -> Callable[[web.Request, dict[str, Any]], Any]:
        """Return what answers by another API: what chat would answer, in its form."""

        async def answer(request: web.Request, fields: dict[str, Any]) -> web.StreamResponse:
            asked = {**fields, "stream_options": {"include_usage": True}}
            prompt, replies = tokens_of(str(fields.get("input") or fields.get("messages"))), [self._next_reply()]
            made = dialect.stream(fields)
            if not fields.get("stream"):
                made.take(self._whole_chat(asked, prompt, replies))
                return web.json_response(made.answer())
            chunks = self._chat_chunks(asked, prompt, replies)
            events = [event async for chunk in chunks for event in made.feed(chunk)]
            return await self._send_named(request, [*events, *made.finish()])

        return answer

    async def _send_named(self, request: web.Request, events: Sequence[dict[str, Any]]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        await response.write_eof()
        return response

    async def _echo(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.received.append(Received(request.path_qs, dict(request.headers), {}, body))
        return web.Response(body=body, content_type="application/octet-stream", status=201)


def _plain(message: dict[str, Any]) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else "".join(str(part.get("text", "*")) for part in content or ())
    calls = message.get("tool_calls")
    return text + (json.dumps(calls) if calls else "")


def _reason(reply: dict[str, Any]) -> str:
    return "tool_calls" if reply.get("tool_calls") else "stop"


def _deltas(reply: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Cut a reply into the pieces of a stream, each with its tokens' text."""
    if not reply.get("tool_calls"):
        return [({"content": character}, character) for character in str(reply["content"])]
    pieces: list[tuple[dict[str, Any], str]] = []
    for index, call in enumerate(reply["tool_calls"]):
        function = call["function"]
        begun = {"index": index, "id": call["id"], "type": "function", "function": {"name": function["name"]}}
        pieces.append(({"tool_calls": [begun]}, ""))
        half = len(function["arguments"]) // 2
        pieces.extend(
            ({"tool_calls": [{"index": index, "function": {"arguments": part}}]}, "")
            for part in (function["arguments"][:half], function["arguments"][half:])
        )
    last = pieces[-1]
    return [*pieces[:-1], (last[0], _plain(reply))]


def _chunk(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _usage(prompt: list[int], choices: Sequence[dict[str, Any]]) -> dict[str, int]:
    answered = sum(len(_plain(choice)) for choice in choices)
    return {"prompt_tokens": len(prompt), "completion_tokens": answered, "total_tokens": len(prompt) + answered}
