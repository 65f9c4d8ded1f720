import asyncio
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from lightning_core.agent import rollout
from lightning_core.algorithm import Batch, RolloutOutcome, describe_failure, require_rewards, run_batch
from lightning_core.algorithm.batch import wait_for_all
from lightning_core.emitter import emit_message, emit_reward
from lightning_core.errors import NoRewards, NotFound
from lightning_core.store import InMemoryLightningStore
from lightning_core.testing import FakeClock
from lightning_core.types import Attempt, AttemptedRollout, PromptTemplate, Rollout, RolloutConfig, Span

if TYPE_CHECKING:
    from tests.algorithm.conftest import Running

pytestmark = pytest.mark.usefixtures("nothing_left_running")


@rollout
async def echo(task: float) -> float:
    return task


async def test_outcomes_are_in_the_order_of_the_inputs_whichever_ends_first(
    store: InMemoryLightningStore, running: "Running"
) -> None:
    ended = [asyncio.Event() for _ in range(5)]
    ended[4].set()

    @rollout
    async def backwards(task: int) -> float:
        """Waits for the task after it."""
        if task < 4:
            await ended[task + 1].wait()
        ended[task].set()
        return task / 10

    async with running(backwards, n_runners=5):
        batch = await run_batch(store, range(5), mode="train")

    assert [outcome.rollout.input for outcome in batch.outcomes] == [0, 1, 2, 3, 4]
    assert [outcome.reward for outcome in batch.outcomes] == batch.rewards == [0.0, 0.1, 0.2, 0.3, 0.4]
    assert batch.mean_reward == pytest.approx(0.2)
    assert batch.lost == 0


async def test_rollouts_are_made_as_asked_for(store: InMemoryLightningStore, running: "Running") -> None:
    older = await store.add_resources({"prompt": PromptTemplate(template="older")})
    await store.add_resources({"prompt": PromptTemplate(template="newer")})
    config = RolloutConfig(timeout_seconds=60, max_attempts=2)

    @rollout
    async def agent(task: Any, prompt_template: PromptTemplate) -> None:
        emit_message(prompt_template.template)

    async with running(agent):
        batch = await run_batch(store, ["task"], mode="val", resources_id=older.resources_id, config=config)

    (outcome,) = batch.outcomes
    assert (outcome.rollout.mode, outcome.rollout.config) == ("val", config)
    assert outcome.spans[0].attributes["agentlightning.message.body"] == "older"


async def test_what_fails_is_lost_and_no_reward_of_zero(store: InMemoryLightningStore, running: "Running") -> None:
    @rollout
    async def agent(task: float) -> float | None:
        if task == 0:
            emit_reward(99.0)
            raise ValueError("the tool said:\n  nothing")
        return None if task == 1 else task

    async with running(agent):
        batch = await run_batch(store, [0, 1, 0.5, 1.5], mode="train")

    assert (batch.rewards, batch.lost, batch.mean_reward) == ([0.5, 1.5], 2, 1.0)
    assert [outcome.failure for outcome in batch.outcomes] == [
        "ValueError: the tool said: nothing",
        "the agent gave no reward: return a number, or call emit_reward",
        None,
        None,
    ]
    assert [span.name for span in batch.outcomes[0].spans] == ["agentlightning.annotation", "agentlightning.exception"]
    assert batch.outcomes[0].attempt is not None
    assert batch.outcomes[0].attempt.status == "failed"


@pytest.mark.parametrize(
    ("value", "failure"),
    [("high", "span 'judged' has a broken reward at"), (float("nan"), "the reward is nan; rewards are finite")],
)
async def test_broken_reward_is_lost_and_ends_no_batch(
    store: InMemoryLightningStore, running: "Running", value: Any, failure: str
) -> None:
    @rollout
    async def agent(task: int, rollout: AttemptedRollout) -> float | None:
        if task == 0:
            attributes = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": value}
            place = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
            await store.add_span(Span.from_attributes(name="judged", attributes=attributes, **place))
            return None
        return 0.5

    async with running(agent):
        batch = await run_batch(store, [0, 1], mode="train")

    assert (batch.rewards, batch.lost) == ([0.5], 1)
    assert [outcome.rollout.status for outcome in batch.outcomes] == ["succeeded", "succeeded"]
    assert failure in str(batch.outcomes[0].failure)


async def test_batch_of_the_same_name_is_continued(store: InMemoryLightningStore, running: "Running") -> None:
    calls = []

    @rollout
    async def agent(task: float) -> float:
        calls.append(task)
        return task

    async with running(agent):
        first = await run_batch(store, [1, 2], mode="train", request_id="epoch-1")
        again = await run_batch(store, [1, 2], mode="train", request_id="epoch-1")
        other = await run_batch(store, [1, 2], mode="train", request_id="epoch-2")

    assert sorted(calls) == [1, 1, 2, 2]
    assert first == again
    assert other.rewards == [1, 2]


async def test_what_has_not_ended_in_time_is_cancelled_and_lost() -> None:
    """One rollout has ended, one runs, and one is queued behind it."""
    clock = FakeClock()
    store = InMemoryLightningStore(clock=clock)
    waiting = asyncio.create_task(run_batch(store, ["ended", "runs", "queued"], mode="train", timeout_seconds=60))
    await clock.until_waiting()
    ended, runs = await store.dequeue_many_rollouts(limit=2)
    await store.update_attempt(ended.rollout_id, "latest", status="succeeded")
    await clock.advance(59)
    assert not waiting.done()

    await clock.advance(1)
    batch = await waiting

    assert [outcome.rollout.status for outcome in batch.outcomes] == ["succeeded", "cancelled", "cancelled"]
    assert [outcome.failure for outcome in batch.outcomes] == [
        "the agent gave no reward: return a number, or call emit_reward",
        "rollout cancelled, its last attempt preparing",
        "rollout cancelled before a runner took it",
    ]
    assert await store.dequeue_rollout() is None
    late = await store.update_attempt(runs.rollout_id, "latest", status="succeeded")
    assert late.status == "succeeded"
    (still,) = await store.wait_for_rollouts(rollout_ids=[runs.rollout_id], timeout=0)
    assert still.status == "cancelled"


async def test_rollout_that_ends_while_it_is_being_cancelled_counts() -> None:
    class EndsAtTheLastMoment(InMemoryLightningStore):
        """Its rollout ends between the wait that ran out and the cancellation."""

        ran_out = False

        async def wait_for_rollouts(self, *, rollout_ids: Any, timeout: float | None = None) -> Sequence[Rollout]:
            if self.ran_out:
                return await super().wait_for_rollouts(rollout_ids=rollout_ids, timeout=timeout)
            self.ran_out = True
            claimed = await self.dequeue_rollout()
            assert claimed is not None
            await self.update_attempt(claimed.rollout_id, "latest", status="failed", metadata={"failure": "no dict"})
            return []

    batch = await run_batch(EndsAtTheLastMoment(), ["task"], mode="train", timeout_seconds=60)

    (outcome,) = batch.outcomes
    assert (outcome.rollout.status, outcome.failure) == ("failed", "rollout failed, its last attempt failed")


async def test_batch_that_is_cancelled_stops_waiting_and_leaves_its_rollouts(store: InMemoryLightningStore) -> None:
    waiting = asyncio.create_task(run_batch(store, ["a", "b"], mode="train"))
    while not await store.query_rollouts():  # noqa: ASYNC110  # the store tells only runners of what is queued
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert [each.status for each in await store.query_rollouts()] == ["queuing", "queuing"]


def ended(status: Any, attempt_status: Any = None, *, metadata: Any = None, **config: Any) -> Rollout:
    fields: dict[str, Any] = {
        "rollout_id": "ro-1",
        "input": None,
        "start_time": 0,
        "status": status,
        "config": RolloutConfig(**config),
    }
    if attempt_status is None:
        return Rollout(**fields)
    attempt = Attempt(
        rollout_id="ro-1", attempt_id="at-1", sequence_id=1, start_time=0, status=attempt_status, metadata=metadata
    )
    return AttemptedRollout(**fields, attempt=attempt)


@pytest.mark.parametrize(
    ("rollout", "described"),
    [
        (ended("failed", "failed", metadata={"failure": {"type": "E", "message": "a\nb"}}), "E: a b"),
        (ended("failed", "failed"), "rollout failed, its last attempt failed"),
        (ended("failed", "failed", metadata={"fault": "OSError: no\nspace"}), "fault: OSError: no space"),
        (
            ended("failed", "failed", metadata={"fault": "killed", "given_up": "given up after 4 faults: …"}),
            "fault: given up after 4 faults: …",
        ),
        (ended("cancelled", "failed", metadata={"fault": "stopped"}), "rollout cancelled, its last attempt failed"),
        (ended("failed", "unresponsive"), "rollout failed, its last attempt unresponsive"),
        (ended("failed", "timeout", timeout_seconds=1.5), "AgentTimeout: the agent ran longer than 1.5 s"),
        (ended("failed", "timeout"), "rollout failed, its last attempt timeout"),
        (ended("cancelled"), "rollout cancelled before a runner took it"),
        (ended("succeeded", "succeeded"), "the agent gave no reward: return a number, or call emit_reward"),
    ],
)
def test_failure_is_described_in_one_line(rollout: Rollout, described: str) -> None:
    assert describe_failure(rollout) == described


def outcome(reward: float | None) -> RolloutOutcome:
    return RolloutOutcome(ended("succeeded", "succeeded"), [], reward)


def test_step_without_any_reward_stops_with_the_first_cause() -> None:
    first = RolloutOutcome(ended("failed", "timeout", timeout_seconds=2), [], None)
    expected = "step 3: none of 3 rollouts gave a reward; the first: AgentTimeout: the agent ran longer than 2 s"
    with pytest.raises(NoRewards, match=re.escape(expected)):
        require_rewards([Batch([]), Batch([first, outcome(None)]), Batch([outcome(None)])], step="step 3")


async def test_a_rollout_that_was_deleted_while_it_is_waited_for_is_named(store: InMemoryLightningStore) -> None:
    kept, deleted = [await store.enqueue_rollout(each) for each in "ab"]
    waiting = asyncio.create_task(wait_for_all(store, [kept.rollout_id, deleted.rollout_id]))
    for each in (kept, deleted):
        await store.update_rollout(each.rollout_id, status="cancelled")
    await store.delete_rollouts([deleted.rollout_id])
    with pytest.raises(NotFound, match=f"has no rollout {deleted.rollout_id}"):
        await waiting
    assert [each.rollout_id for each in await wait_for_all(store, [kept.rollout_id])] == [kept.rollout_id]
