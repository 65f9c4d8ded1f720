"""What the store and the hooks are told of an attempt's end."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from lightning_core.agent import rollout
from lightning_core.emitter import emit_message, emit_reward
from lightning_core.runner import LitAgentRunner
from lightning_core.store import InMemoryLightningStore
from lightning_core.tracer import OtelTracer, trace
from lightning_core.types import Attempt, AttemptedRollout, Rollout, Span

if TYPE_CHECKING:
    from tests.runner.conftest import RunAgent

pytestmark = pytest.mark.usefixtures("nothing_left_running")


class Endings:
    """What hooks are told of ends."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, float | None]] = []
        self.spans: Sequence[Span] = ()

    def lightning_rollout_end(
        self, rollout: Rollout, attempt: Attempt, reward: float | None, spans: Sequence[Span]
    ) -> None:
        self.told.append((rollout.status, attempt.status, reward))
        self.spans = spans


async def test_what_others_write_at_the_very_end_of_an_attempt_is_not_lost(run_agent: "RunAgent") -> None:
    class Contended(InMemoryLightningStore):
        """Somebody else is always a moment faster."""

        async def update_attempt(self, rollout_id: str, attempt_id: str, *args: Any, **kwargs: Any) -> Attempt:
            if args or "status" in kwargs:
                await super().update_attempt(rollout_id, attempt_id, metadata={"node": "gpu-3"})
            return await super().update_attempt(rollout_id, attempt_id, *args, **kwargs)

    @rollout
    async def agent(task: Any) -> None:
        raise ValueError("no answer")

    store = Contended()
    ran = await run_agent(agent, "task", on=store)
    attempt = ran.attempt
    assert attempt.metadata is not None
    assert attempt.metadata.keys() == {"node", "failure"}


@pytest.mark.parametrize("how", ["queued again", "begun anew"])
async def test_hook_is_told_no_reward_of_an_attempt_that_was_given_up(
    store: InMemoryLightningStore, how: str, run_agent: "RunAgent"
) -> None:
    @rollout
    async def agent(task: Any, rollout: AttemptedRollout) -> float:
        if how == "queued again":
            await store.update_rollout(rollout.rollout_id, status="queuing")
        else:
            await store.start_attempt(rollout.rollout_id)
        return 1.0

    endings = Endings()
    await run_agent(agent, "task", on=store, hooks=endings)

    status = "queuing" if how == "queued again" else "preparing"
    assert endings.told == [(status, "succeeded", None)]
    assert len(endings.spans) == 1


class Repeating(InMemoryLightningStore):
    """Every delivery arrives twice, and it is the second one that is answered: nothing was new in it."""

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        await super().add_many_spans(spans)
        return await super().add_many_spans(spans)


class RepeatingOnce(InMemoryLightningStore):
    """The same for the last delivery before the agent's end."""

    repeats = False

    def __init__(self) -> None:
        super().__init__()
        self.arrived = asyncio.Event()

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        stored = await super().add_many_spans(spans)
        self.arrived.set()
        return await super().add_many_spans(spans) if self.repeats else stored


async def test_hook_is_told_the_last_reward_when_a_delivery_was_repeated(
    monkeypatch: pytest.MonkeyPatch, run_agent: "RunAgent"
) -> None:
    monkeypatch.setattr(trace, "LINGER_SECONDS", 0)
    store, endings = RepeatingOnce(), Endings()

    @rollout
    async def agent(task: Any) -> None:
        emit_reward(0.25)
        await store.arrived.wait()
        store.repeats = True
        emit_message("thinking")
        emit_reward(0.75)

    await run_agent(agent, "task", on=store, hooks=endings)

    assert endings.told == [("succeeded", "succeeded", 0.75)]
    assert [span.sequence_id for span in endings.spans] == [1, 2, 3]


async def test_hook_is_told_the_reward_of_a_grader_whose_delivery_was_repeated() -> None:
    store, endings = Repeating(), Endings()

    @rollout
    async def agent(task: Any) -> str:
        emit_message("thinking")
        return "answer"

    await store.enqueue_rollout("task")
    runner = LitAgentRunner(OtelTracer(), max_rollouts=1, reward=lambda result: 0.5)
    with runner.run_context(agent=agent, store=store, hooks=endings):
        await runner.iter()

    assert endings.told == [("succeeded", "succeeded", 0.5)]
