import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from lightning_core.agent import LitAgent, rollout
from lightning_core.emitter import find_final_reward
from lightning_core.runner import LitAgentRunner
from lightning_core.store import InMemoryLightningStore
from lightning_core.tracer import OtelTracer
from lightning_core.types import Attempt, Rollout, Span


@dataclass
class Ran:
    """What the store knows after a runner has run one rollout."""

    rollout: Rollout
    attempt: Attempt
    spans: list[Span]

    @property
    def reward(self) -> float | None:
        return find_final_reward(self.spans)

    @property
    def failure(self) -> dict[str, str]:
        """Why it failed, as the attempt's metadata say."""
        failure: dict[str, str] = (self.attempt.metadata or {})["failure"]
        return {name: text for name, text in failure.items() if name != "where"}


RunAgent = Callable[..., Awaitable[Ran]]
MakeAgent = Callable[[Callable[[], Any]], LitAgent[Any]]


class LoopClock:
    """Moves the time of the running event loop: what waits for it need not be waited for."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ahead_seconds = 0.0
        machine_time = self._loop.time
        self._loop.time = lambda: machine_time() + self._ahead_seconds  # type: ignore[method-assign]

    def advance(self, seconds: float) -> None:
        """Let so much time pass as soon as whatever runs now waits for something; from any thread."""
        self._loop.call_soon_threadsafe(self._advance, seconds)

    def _advance(self, seconds: float) -> None:
        self._ahead_seconds += seconds


@pytest.fixture
async def loop_clock() -> LoopClock:
    return LoopClock()


@pytest.fixture
def store() -> InMemoryLightningStore:
    return InMemoryLightningStore()


@pytest.fixture
def run_agent(store: InMemoryLightningStore) -> RunAgent:
    """Enqueue one rollout and let a runner run it."""

    async def run(
        agent: LitAgent[Any],
        input: Any = None,
        *,
        attempts: int = 1,
        hooks: Any = None,
        on: InMemoryLightningStore = store,
        **enqueue: Any,
    ) -> Ran:
        rollout_id = (await on.enqueue_rollout(input, **enqueue)).rollout_id
        runner = LitAgentRunner(OtelTracer(), max_rollouts=attempts)
        with runner.run_context(agent=agent, store=on, hooks=hooks):
            await runner.iter()
        return await look_at(on, rollout_id)

    return run


async def look_at(store: InMemoryLightningStore, rollout_id: str) -> Ran:
    ended, attempt = await store.get_rollout_by_id(rollout_id), await store.get_latest_attempt(rollout_id)
    assert ended is not None
    assert attempt is not None
    return Ran(ended, attempt, list(await store.query_spans(rollout_id, "latest")))


@pytest.fixture(params=["sync", "async"])
def make_agent(request: pytest.FixtureRequest) -> MakeAgent:
    """Make an agent of a function without arguments: once a sync one, once an async one."""

    def make(body: Callable[[], Any]) -> LitAgent[Any]:
        def in_thread(task: Any) -> Any:
            return body()

        async def in_loop(task: Any) -> Any:
            return body()

        return rollout(in_thread if request.param == "sync" else in_loop)

    return make
