"""What the tests of the live page share: stores with rollouts, and questions to the page."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from lightning_http.auth import Keys
from lightning_http.listener import Listener, bind
from lightning_http.server import LightningStoreServer
from lightning_viewer.live import Live
from lightning_viewer.routes import page_app

from lightning_core import PromptTemplate, Trainer, rollout
from lightning_core.runs.folder import RunFolder, runs_in
from lightning_core.store import LightningStore
from lightning_core.types import Span

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">&amp;"
KEY, RUNNER_KEY = "the-key-of-the-algorithm", "the-key-of-runners"
SECONDS = 20.0


def prompt(text: str) -> dict[str, Any]:
    return {"main_prompt": PromptTemplate(template=text)}


async def work(store: LightningStore, reward: float | None = None, *, worker_id: str = "worker-1") -> str:
    """Carry out the oldest queued rollout."""
    claimed = await store.dequeue_rollout(worker_id)
    assert claimed is not None
    rollout_id, attempt_id = claimed.rollout_id, claimed.attempt.attempt_id
    if reward is not None:
        await store.add_span(reward_span(rollout_id, attempt_id, reward))
    await store.update_attempt(rollout_id, attempt_id, "failed" if reward is None else "succeeded")
    return rollout_id


def reward_span(rollout_id: str, attempt_id: str, reward: float) -> Span:
    return Span.from_attributes(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=0,
        name="agentlightning.annotation",
        attributes={"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": reward},
    )


async def ask(server: LightningStoreServer, path: str, *, key: str | None = None, **options: Any) -> tuple[int, Any]:
    headers = {**options.pop("headers", {}), **({} if key is None else {"authorization": f"Bearer {key}"})}
    async with (
        aiohttp.ClientSession() as session,
        session.request(options.pop("method", "GET"), server.url + path, headers=headers, **options) as answer,
    ):
        text = await answer.text()
        return answer.status, json.loads(text) if answer.content_type == "application/json" else text


async def next_event(answer: aiohttp.ClientResponse, after: int = 0) -> int:
    """Return the next revision after this one that a server tells of."""
    async with asyncio.timeout(SECONDS):
        while True:
            line = (await answer.content.readline()).decode()
            assert line, "the stream has ended"
            if line.startswith("data: ") and (revision := int(json.loads(line[6:])["revision"])) > after:
                return revision


async def talk(store: LightningStore) -> tuple[str, str]:
    """Carry out the queued rollout with a model call below a span of the agent's own; return both ids."""
    claimed = await store.dequeue_rollout("worker-1")
    assert claimed is not None
    ids: dict[str, Any] = {"rollout_id": claimed.rollout_id, "attempt_id": claimed.attempt.attempt_id}
    plan = Span.from_attributes(**ids, sequence_id=0, name="plan the answer", attributes={"depth": 3})
    call = Span.from_attributes(
        **ids,
        sequence_id=0,
        name="chat tiny",
        parent_id=plan.span_id,
        attributes={
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "tiny",
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": "what is asked",
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.content": HOSTILE,
            "prompt_token_ids": [1, 2, 3],
            "response_token_ids": [4, 5],
            "response_logprobs": [-0.1, -2.3026],
        },
    )
    await store.add_many_spans([plan, call])
    await store.add_span(reward_span(**ids, reward=0.25))
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, "succeeded")
    return claimed.rollout_id, plan.span_id


async def converse(
    store: LightningStore, calls: Sequence[tuple[list[int], list[int]]], *, error: str = "", reward: Any = 1.0
) -> str:
    """Carry out a rollout with model calls of these tokens, of the prompt and of the answer."""
    claimed = await store.start_rollout({"question": "long"}, mode="train")
    ids: dict[str, Any] = {"rollout_id": claimed.rollout_id, "attempt_id": claimed.attempt.attempt_id}
    for prompt_ids, answer_ids in calls:
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "tiny",
            "prompt_token_ids": prompt_ids,
            "response_token_ids": answer_ids,
            "response_logprobs": [-0.5] * len(answer_ids),
            **({"error.type": error} if error else {}),
        }
        await store.add_span(Span.from_attributes(**ids, sequence_id=0, name="chat tiny", attributes=attributes))
    await store.add_span(reward_span(**ids, reward=reward))
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, "succeeded")
    return claimed.rollout_id


async def trained(agent: Any, root: Path, train: Any = None, *, val: Any = None, **options: Any) -> RunFolder:
    """Run an agent on samples in a run that ends, and return its folder, which is below this one."""
    trainer = Trainer(**{"algorithm": "baseline", "run_dir": root, **options})
    result = await trainer.fit_async(agent, train, val_dataset=val)
    await trainer.store.aclose()
    return RunFolder(root / result.run_id)


@rollout
async def agent(task: Any) -> float:
    return float(task)


async def two_runs(root: Path) -> list[RunFolder]:
    for number in (0, 1):

        @rollout
        async def answers(task: int, better: int = number) -> float:
            return 1.0 if better or task == 0 else 0.0

        await trained(answers, root, [0, 1, 2])
    return sorted(runs_in(root), key=lambda each: each.manifest().start)


@asynccontextmanager
async def served(live: Live) -> AsyncIterator[str]:
    bound = bind("127.0.0.1", 0)
    listener = Listener(page_app(live, Keys(None)), bound)
    port = bound.getsockname()[1]
    await listener.open()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await listener.close(seconds=0.5)
        await live.aclose()
