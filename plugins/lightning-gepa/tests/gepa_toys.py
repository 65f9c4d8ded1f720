"""A model that rewrites prompts by lot, and a toy run: the trainer, its store and its runners, and an agent."""

import json
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from aiohttp import web
from lightning_gepa import GEPA

from lightning_core import FitResult, NamedResources, PromptTemplate, Trainer, emit_message, rollout
from lightning_core.store import InMemoryLightningStore, LightningStore
from lightning_core.types import AttemptedRollout

CURRENT = re.compile(r"```\n(.*?)\n```", re.DOTALL)
EDITS = ("Think first.", "Check your units.", "Be polite.", "Be brief.", "Guess if you are unsure.", "Use a list.")
FIRST = "Answer the question.\n\n{question}"
TRAIN = [{"question": f"train {number}", "difficulty": number / 12} for number in range(12)]
VAL = [{"question": f"val {number}", "difficulty": number / 10} for number in range(10)]
OPTIONS: dict[str, Any] = {"max_metric_calls": 80}


def edit_by_lot(request: str, seed: int) -> str:
    """Add a line of the pool, drawn by the seed, to the text that a request shows."""
    current = CURRENT.search(request)
    assert current is not None
    lines = current[1].split("\n")
    text = "\n".join([lines[0], random.Random(seed).choice(EDITS), *lines[1:]])
    return f"Here it is:\n```\n{text}\n```"


class Client:
    """Takes the place of an `AsyncOpenAI`, with neither connection nor task: the same request has one answer."""

    api_key = "toy"
    base_url = "http://models.invalid/v1"

    def __init__(self, rewrite: Callable[[str, int], str] = edit_by_lot) -> None:
        self.rewrite = rewrite
        self.requests: list[str] = []
        self.finish_reason = "stop"
        self.before: Callable[[], Awaitable[None]] | None = None

    @property
    def chat(self) -> Any:
        return SimpleNamespace(completions=self)

    async def create(self, *, model: str, messages: list[dict[str, str]], temperature: float, seed: int) -> Any:
        request = messages[0]["content"]
        self.requests.append(request)
        if self.before is not None:
            await self.before()
        message = SimpleNamespace(content=self.rewrite(request, seed))
        usage = SimpleNamespace(prompt_tokens=10, completion_tokens=2)
        return SimpleNamespace(
            choices=[SimpleNamespace(message=message, finish_reason=self.finish_reason)], usage=usage
        )


def quality(template: str) -> float:
    """The share of tasks that an agent with this prompt gets right."""
    gains = {"Think first.": 0.35, "Check your units.": 0.25, "Guess if you are unsure.": -0.2}
    return 0.2 + sum(gain for edit, gain in gains.items() if edit in template)


def succeed_where_easy(template: str, task: Mapping[str, Any]) -> float:
    return float(task["difficulty"] < quality(template) - 1e-9)


@dataclass
class ToyRun:
    """Runs `fit`, and keeps what the agent saw."""

    client: Client = field(default_factory=Client)
    reward: Callable[[str, Mapping[str, Any]], float | None] = succeed_where_easy
    resources: NamedResources = field(default_factory=lambda: {"main": PromptTemplate(template=FIRST)})
    train: list[dict[str, Any]] | None = field(default_factory=lambda: list(TRAIN))
    val: list[dict[str, Any]] | None = field(default_factory=lambda: list(VAL))
    test: list[dict[str, Any]] | None = None
    store: LightningStore = field(default_factory=InMemoryLightningStore)
    before: Callable[[AttemptedRollout], Awaitable[None]] | None = None
    n_runners: int = 8
    rollouts: list[tuple[str | None, str, str]] = field(default_factory=list)
    """Mode, template of the only prompt, and question of each."""
    gepa: GEPA | None = None

    async def fit(self, **options: Any) -> FitResult:
        @rollout
        async def agent(task: Any, resources: NamedResources, rollout: AttemptedRollout) -> float | None:
            prompts = [each for each in resources.values() if isinstance(each, PromptTemplate)]
            text = "\n".join(prompt.template for prompt in prompts)
            self.rollouts.append((rollout.mode, text, task["question"]))
            if self.before is not None:
                await self.before(rollout)
            emit_message(f"I was asked: {task['question']}")
            return self.reward(text, task)

        client: Any = self.client
        self.gepa = GEPA(client, **{**OPTIONS, **options})
        trainer = Trainer(
            algorithm=self.gepa,
            store=self.store,
            n_runners=self.n_runners,
            initial_resources=self.resources,
            stop_on_identical_failures=False,
        )
        return await trainer.fit_async(agent, self.train, val_dataset=self.val, test_dataset=self.test)

    @property
    def found(self) -> Any:
        """What the last search found."""
        assert self.gepa is not None
        return self.gepa.get_result()


class Models:
    """An endpoint whose model `small` repeats what it is told, and every other one rewrites prompts by lot."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.url = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
            yield self.url
        finally:
            await runner.cleanup()

    async def _complete(self, http_request: web.Request) -> web.Response:
        request = json.loads(await http_request.read())
        self.requests.append(request)
        text = request["messages"][0]["content"]
        said = text if request["model"] == "small" else edit_by_lot(text, request["seed"])
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        answered = {"id": f"answer {len(self.requests)}", "object": "chat.completion", "created": 0}
        return web.json_response({**answered, "model": request["model"], "choices": [choice], "usage": usage})
