"""An OpenAI-compatible endpoint with a critic and an editor that follow a script."""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from openai import AsyncOpenAI

TEMPLATE = re.compile(r"<prompt_template>\n(.*?)\n</prompt_template>", re.DOTALL)
CRITIQUE = re.compile(r"<critique>\n(.*?)\n</critique>", re.DOTALL)
EDITS = ("Think first.", "Check your units.", "Be polite.", "Be brief.", "Guess if you are unsure.", "Use a list.")


def edit_by_lot(template: str, seed: int) -> str:
    """Add a line of the pool, drawn by the seed."""
    lines = template.split("\n")
    return "\n".join([lines[0], random.Random(seed).choice(EDITS), *lines[1:]])


class ToyModels:
    """Answers as the models named `critic` and `editor`, and keeps what it was asked."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.answered = 0
        self.url = ""
        self.critique: Callable[[str, int], str | None] = lambda text, seed: "- The prompt is too vague."
        self.edit: Callable[[str, int], str | None] = edit_by_lot
        self.status = 200
        self.finish_reason = "stop"
        self.latency: random.Random | None = None
        self.on_request: Callable[[], None] = lambda: None
        self.reply: Callable[[int], web.Response | None] = lambda seed: None
        """What is replied to a request with this seed in place of an answer."""
        self.finish: Callable[[dict[str, Any], web.Response], web.Response] = lambda request, answer: answer
        """What becomes of an answer to a request."""
        self.before_answer: Callable[[str], Awaitable[None]] | None = None
        """Awaited with the name of the model that is asked."""
        self.keys: set[str | None] = set()
        self.error = "out of order"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["ToyModels"]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
            yield self
        finally:
            await runner.cleanup()

    def client(self, **options: Any) -> AsyncOpenAI:
        return AsyncOpenAI(**{"base_url": self.url, "api_key": "toy", "max_retries": 0, **options})

    def texts(self, model: str) -> list[str]:
        return [request["messages"][0]["content"] for request in self.requests if request["model"] == model]

    async def _complete(self, http_request: web.Request) -> web.Response:
        request = await http_request.json()
        self.requests.append(request)
        self.on_request()
        self.keys.add(http_request.headers.get("Authorization"))
        if self.latency is not None:
            await asyncio.sleep(self.latency.random() / 200)
        if (reply := self.reply(request["seed"])) is not None:
            return reply
        if self.status != 200:
            return web.json_response({"error": {"message": self.error}}, status=self.status)
        text, seed = request["messages"][0]["content"], request["seed"]
        if self.before_answer is not None:
            await self.before_answer(request["model"])
        if request["model"] == "critic":
            answer = self.critique(text, seed)
        else:
            template = TEMPLATE.search(text)
            assert template is not None
            answer = self.edit(template[1], seed)
        choice = {"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": self.finish_reason}
        self.answered += 1
        answered = {"id": f"answer {self.answered}", "object": "chat.completion", "created": 0, "model": "m"}
        body = {**answered, "choices": [choice]}
        return self.finish(request, web.json_response(body))
