"""Subclasses that have only the methods that agentlightning 0.3 asked of them."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

import lightning_core as agl
from lightning_core.errors import ExecutionError


class PrivateTracer(agl.Tracer):
    """Keeps OpenTelemetry's spans, and neither calls super().__init__() nor takes what is emitted."""

    def __init__(self) -> None:
        self.kept: list[ReadableSpan] = []

    @asynccontextmanager
    async def trace_context(
        self, name: str | None = None, *, rollout_id: str | None = None, attempt_id: str | None = None
    ) -> AsyncIterator[list[ReadableSpan]]:
        self.kept = []
        yield self.kept
        span = TracerProvider().get_tracer("mine").start_span("mine")
        span.end()
        assert isinstance(span, ReadableSpan)
        self.kept.append(span)

    def get_last_trace(self) -> list[Any]:
        return self.kept


class SilentTracer(agl.Tracer):
    @asynccontextmanager
    async def trace_context(self, name: str | None = None, **ids: Any) -> AsyncIterator[None]:
        assert ids["store"] is self._store
        yield

    def get_last_trace(self) -> list[agl.Span]:
        return []


class Listener(agl.Hook):
    def __init__(self) -> None:
        self.names: list[str] = []

    async def on_rollout_end(self, *, agent: Any, runner: Any, rollout: Any, spans: Any) -> None:
        self.names += [span.name for span in spans]


@agl.rollout
def emitting(task: str) -> float:
    agl.emit_message(task)
    with agl.operation(name="step"):
        pass
    return 0.5


async def run(tracer: agl.Tracer, agent: Any, *hooks: agl.Hook) -> tuple[agl.Rollout, list[str]]:
    store = agl.InMemoryLightningStore()
    runner = agl.LitAgentRunner(tracer)
    with runner.run_context(agent=agent, store=store, hooks=hooks):
        rollout = await runner.step("hello")
    return rollout, [span.name for span in await store.query_spans(rollout.rollout_id)]


async def test_a_tracer_without_a_method_for_emitters_does_not_keep_an_agent_from_emitting() -> None:
    listener = Listener()
    rollout, names = await run(PrivateTracer(), emitting, listener)
    assert rollout.status == "succeeded"
    assert sorted(names) == ["agentlightning.annotation", "agentlightning.message", "agentlightning.operation"]
    assert sorted(listener.names) == [*sorted(names), "mine"]


async def test_what_an_agent_raises_under_such_a_tracer_is_its_failure() -> None:
    @agl.rollout
    def failing(task: str) -> float:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        await run(SilentTracer(), failing)


def test_a_tracer_says_which_method_it_lacks_when_it_is_used() -> None:
    with pytest.raises(NotImplementedError, match="SilentTracer does not implement create_span"):
        SilentTracer().create_span("span")


class ThreadStrategy(agl.ExecutionStrategy):
    """Runs both sides in threads with loops of their own, and tells the runner by an event."""

    n_runners = 1

    def execute(self, algorithm: Any, runner: Any, store: agl.LightningStore) -> None:  # type: ignore[override]
        stop = threading.Event()
        worker = threading.Thread(target=lambda: asyncio.run(runner(store, 0, stop)))
        worker.start()
        try:
            asyncio.run(algorithm(store, stop))
        finally:
            stop.set()
            worker.join()


def test_a_strategy_that_is_no_coroutine_runs_both_sides() -> None:
    trainer = agl.Trainer(algorithm="baseline", strategy=ThreadStrategy(), tracer=agl.OtelTracer())
    result = trainer.fit(emitting, ["a", "b"])
    assert result.metrics["train_reward"] == 0.5


class Forgetful(agl.SharedMemoryExecutionStrategy):
    def execute(self, algorithm: Any, runner: Any, store: agl.LightningStore) -> None:  # type: ignore[override]
        super().execute(algorithm, runner, store).close()


class Returning(agl.SharedMemoryExecutionStrategy):
    def execute(self, algorithm: Any, runner: Any, store: agl.LightningStore) -> Any:
        return super().execute(algorithm, runner, store)


def test_a_strategy_that_drops_the_coroutine_of_ours_is_told_to_return_it() -> None:
    with pytest.raises(ExecutionError, match=r"Forgetful.execute called neither .*super\(\)\.execute.* return"):
        agl.Trainer(algorithm="baseline", strategy=Forgetful()).fit(emitting, ["a"])
    result = agl.Trainer(algorithm="baseline", strategy=Returning(), tracer=agl.OtelTracer()).fit(emitting, ["a"])
    assert result.metrics["train_reward"] == 0.5


def test_what_a_side_of_such_a_strategy_raises_is_raised_by_fit() -> None:
    @agl.algo
    def broken(train_dataset: Any) -> None:
        raise RuntimeError("the algorithm broke")

    with pytest.raises(RuntimeError, match="the algorithm broke"):
        agl.Trainer(algorithm=broken, strategy=ThreadStrategy()).fit(emitting, ["a"])


@pytest.mark.parametrize("algorithm", [agl.Baseline, agl.APO])
def test_an_algorithm_may_be_told_the_type_of_its_samples(algorithm: Any) -> None:
    assert isinstance(algorithm[dict[str, str]](), algorithm)
