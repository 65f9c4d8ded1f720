"""What tests of programs share."""

import asyncio
import os
import stat
import sys
from collections.abc import Awaitable
from pathlib import Path

import psutil
from lightning_agents import CommandAgent

from lightning_core.runner import LitAgentRunner
from lightning_core.store import InMemoryLightningStore
from lightning_core.tracer import OtelTracer
from lightning_core.types import NamedResources, Rollout, RolloutConfig, Span


def shell(script: str, **options: object) -> CommandAgent:
    """An agent that is a shell script."""
    return CommandAgent(["sh", "-c", script], **options)  # type: ignore[arg-type]


def python(script: str, **options: object) -> CommandAgent:
    """An agent that is a Python program."""
    return CommandAgent([sys.executable, "-c", script], **options)  # type: ignore[arg-type]


def executable(path: Path, text: str) -> Path:
    """Write a program."""
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


class Ran:
    """What became of one rollout."""

    def __init__(self, rollout: Rollout, spans: list[Span], failure: dict[str, str] | None, fault: str | None) -> None:
        self.rollout = rollout
        self.spans = spans
        self.failure = failure
        self.fault = fault


async def run(
    agent: object,
    task: object = None,
    *,
    resources: NamedResources | None = None,
    config: RolloutConfig | None = None,
    store: InMemoryLightningStore | None = None,
    reward: object = None,
) -> Ran:
    """Let a real runner do one rollout."""
    store = InMemoryLightningStore() if store is None else store
    resources_id = None if resources is None else (await store.add_resources(resources)).resources_id
    queued = await store.enqueue_rollout(task, mode="train", resources_id=resources_id, config=config)
    runner = LitAgentRunner(OtelTracer(instrument=()), max_rollouts=1, reward=reward)  # type: ignore[arg-type]
    with runner.run_context(agent=agent, store=store):  # type: ignore[arg-type]
        await runner.iter()
    rollout = await store.get_rollout_by_id(queued.rollout_id)
    assert rollout is not None
    (attempt,) = await store.query_attempts(queued.rollout_id)
    metadata = attempt.metadata or {}
    spans = list(await store.query_spans(queued.rollout_id))
    return Ran(rollout, spans, metadata.get("failure"), metadata.get("fault"))


async def run_until_timeout(agent: object, ready: Awaitable[object], *, seconds: float = 60.0) -> Ran:
    """Let a real runner do one rollout that runs out of its time: so many seconds, which pass when it is ready."""

    async def end() -> None:
        assert await ready
        loop = asyncio.get_running_loop()
        machine_time = loop.time
        loop.time = lambda: machine_time() + seconds  # type: ignore[method-assign]

    ran, _ = await asyncio.gather(run(agent, config=RolloutConfig(timeout_seconds=seconds)), end())
    return ran


def alive(marker: str) -> list[psutil.Process]:
    """The processes that have a word in their command line; this one has not."""
    found = []
    for each in psutil.process_iter():
        try:
            if each.pid != os.getpid() and each.status() != psutil.STATUS_ZOMBIE and marker in " ".join(each.cmdline()):
                found.append(each)
        except psutil.Error:
            continue
    return found
