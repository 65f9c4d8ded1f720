"""Measuring the outcome of a run on held-out samples."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest

from lightning_core import rollout
from lightning_core.errors import NoRewards
from lightning_core.runner import LitAgentRunner
from lightning_core.runs.held_out import compare, measure_held_out
from lightning_core.store.memory import InMemoryLightningStore
from lightning_core.tracer import OtelTracer
from lightning_core.types import NamedResources, PromptTemplate, Resource, Span


def prompt(template: str) -> NamedResources:
    return {"main_prompt": PromptTemplate(template=template)}


@rollout
async def agent(task: float, resources: dict[str, Resource]) -> float:
    template = resources.get("main_prompt")
    if not isinstance(template, PromptTemplate):
        return 0.0
    return float(template.template) * task


@asynccontextmanager
async def running(store: InMemoryLightningStore) -> AsyncIterator[None]:
    runner = LitAgentRunner(OtelTracer())
    with runner.run_context(agent=agent, store=store):
        task = asyncio.create_task(runner.iter())
        yield
        task.cancel()
        await asyncio.wait((task,))


@pytest.mark.parametrize(
    ("initial", "best", "expected", "n_rollouts"),
    [
        (prompt("1"), prompt("2"), [{"test_reward_initial": 1.5}, {"test_reward": 3.0}], 4),
        (prompt("2"), prompt("2"), [{"test_reward_initial": 3.0}, {"test_reward": 3.0}], 2),
        (prompt("2"), None, [{"test_reward_initial": 3.0}], 2),
        (None, prompt("2"), [{"test_reward": 3.0}], 2),
        (None, None, [{"test_reward": 0.0}], 2),
    ],
)
async def test_what_there_is_is_measured_once(
    initial: NamedResources | None, best: NamedResources | None, expected: Sequence[dict[str, float]], n_rollouts: int
) -> None:
    store = InMemoryLightningStore()
    reports: list[dict[str, float]] = []
    async with running(store):
        await measure_held_out(
            store, [1.0, 2.0], initial=initial, best=best, report=lambda metrics: reports.append(dict(metrics))
        )
    assert reports == expected
    assert [each.mode for each in await store.query_rollouts()] == ["test"] * n_rollouts


async def test_latest_resources_are_used_where_no_best_were_reported() -> None:
    store = InMemoryLightningStore()
    await store.add_resources(prompt("3"))
    reports: list[dict[str, float]] = []
    async with running(store):
        await measure_held_out(
            store, [1.0], initial=None, best=None, report=lambda metrics: reports.append(dict(metrics))
        )
    assert reports == [{"test_reward": 3.0}]


async def test_no_samples_are_an_error() -> None:
    with pytest.raises(NoRewards, match="the test on held-out samples: there was nothing to run"):
        await measure_held_out(InMemoryLightningStore(), [], initial=None, best=None, report=lambda metrics: None)


async def test_a_measurement_leaves_the_latest_resources_as_they_were() -> None:
    store = InMemoryLightningStore()
    tuned = await store.add_resources(prompt("7"))
    async with running(store):
        await measure_held_out(store, [1.0], initial=prompt("1"), best=prompt("7"), report=lambda metrics: None)
    latest = await store.get_latest_resources()
    assert latest is not None
    assert (latest.resources_id, latest.resources) == (tuned.resources_id, prompt("7"))


async def test_measurement_that_was_killed_is_continued_and_changes_no_resources() -> None:
    store = InMemoryLightningStore()
    versions = [await store.add_resources(prompt(each)) for each in ("1", "2", "9")]
    reports: list[dict[str, float]] = []

    async def measure(stop_at: str | None = None) -> None:
        def report(metrics: Mapping[str, float]) -> None:
            reports.append(dict(metrics))
            if stop_at in metrics:
                raise asyncio.CancelledError

        await measure_held_out(store, [1.0, 2.0], initial=prompt("1"), best=prompt("2"), report=report)

    async with running(store):
        with pytest.raises(asyncio.CancelledError):
            await measure(stop_at="test_reward_initial")
        await measure()
        assert len(await store.query_rollouts()) == 4  # those of the initial prompt were not run again
        await measure()
        assert len(await store.query_rollouts()) == 8  # a measurement that came to its end is made anew
    assert reports == [{"test_reward_initial": 1.5}, *[{"test_reward_initial": 1.5}, {"test_reward": 3.0}] * 2]
    assert list(await store.query_resources()) == versions
    assert await store.get_latest_resources() == versions[-1]


async def test_a_broken_reward_counts_as_none_when_a_run_is_compared() -> None:
    store = InMemoryLightningStore()
    for task, reward in (("easy", 0.5), ("hard", "much"), ("odd", float("nan"))):
        started = await store.start_rollout(task, mode="test")
        span = Span.from_attributes(
            rollout_id=started.rollout_id,
            attempt_id=started.attempt.attempt_id,
            sequence_id=0,
            name="agentlightning.annotation",
            attributes={"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": reward},
        )
        await store.add_span(span)
        await store.update_attempt(started.rollout_id, started.attempt.attempt_id, "succeeded")
    found = await compare(store, initial=None, best=None)
    assert found is not None
    assert found.before is not None
    assert (found.mode, found.before.mean, found.before.n) == ("test", 0.5, 1)
