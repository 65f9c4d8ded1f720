"""Spans: numbers, order, repetition, and what they say of their attempt."""

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from lightning_core.emitter import emit_reward, find_final_reward
from lightning_core.errors import InvalidRequest, NotFound
from lightning_core.rewards import FINAL_REWARD, as_reported, final_reward_in
from lightning_core.store import LightningStore
from lightning_core.testing.clock import FakeClock
from lightning_core.testing.store.base import StoreBehaviour, begin, present, require, rollout_status, soon, span_of
from lightning_core.types import AttemptedRollout, Event, Link, OtelResource, Span, SpanContext, TraceStatus


def reward_of(of: AttemptedRollout, value: float, *, sequence_id: int = 0) -> Span:
    """Make a span with a reward."""
    return span_of(of, sequence_id=sequence_id, attributes=emit_reward(value, propagate=False).attributes)


async def check(store: LightningStore, of: AttemptedRollout, value: float | None) -> None:
    """Check what the attempt's metadata tell, and that its spans tell the same."""
    attempt = present(await store.get_latest_attempt(of.rollout_id))
    assert final_reward_in(attempt.metadata) == value
    assert find_final_reward(await store.query_spans(of.rollout_id, "latest")) == value


_CONTEXT = SpanContext(trace_id="1" * 32, span_id="2" * 16, is_remote=True, trace_state={"vendor": "a"})

NOTHING: dict[str, Any] = {
    "sequence_id": 3,
    "trace_id": "",
    "span_id": "",
    "name": "",
    "status": TraceStatus(status_code="UNSET"),
    "resource": OtelResource(attributes={}),
}
"""The fields of a span that says as little as it may."""

EVERYTHING: dict[str, Any] = {
    "sequence_id": 3,
    "trace_id": "1" * 32,
    "span_id": "2" * 16,
    "parent_id": "3" * 16,
    "name": "everything",
    "status": TraceStatus(status_code="ERROR", description="it broke"),
    "attributes": {"text": "é", "none": None, "a.$b": [1, 2.5], "deep": {"a": [None, True]}, "flags": [True, False]},
    "events": [
        Event(name="first", attributes={"a": [1, {"b": [2]}]}, timestamp=1.25),
        Event(name="bare", attributes={}),
    ],
    "links": [Link(context=_CONTEXT, attributes={"a": 1})],
    "start_time": 1.5,
    "context": _CONTEXT,
    "parent": SpanContext(trace_id="9" * 32, span_id="3" * 16),
    "resource": OtelResource(attributes={"service.name": "agent", "list": [1, 2]}, schema_url="https://example.org"),
    "extra_field": {"of": ["another", "version"]},
}
"""The fields of a span that has all there is, and one of another version."""


class SpanBehaviour(StoreBehaviour):
    """Spans are kept once each, numbered, and move their attempt on."""

    async def test_the_first_span_makes_attempt_and_rollout_run(self, store: LightningStore, clock: FakeClock) -> None:
        started = await begin(store)
        await clock.advance(2)
        await store.add_span(span_of(started))
        rollout = present(await store.get_rollout_by_id(started.rollout_id))
        attempt = present(await store.get_latest_attempt(started.rollout_id))
        assert rollout.status == attempt.status == "running"
        assert (attempt.last_heartbeat_time, attempt.end_time) == (clock.now(), None)

    async def test_the_store_numbers_what_has_no_number_from_one(self, store: LightningStore) -> None:
        started = await begin(store)
        stored = await store.add_many_spans([span_of(started) for _ in range(3)])
        assert [span.sequence_id for span in stored] == [1, 2, 3]
        fourth = present(await store.add_span(span_of(started)))
        assert fourth.sequence_id == 4

    @pytest.mark.parametrize("fields", [EVERYTHING, NOTHING], ids=["everything", "nothing"])
    async def test_a_span_comes_back_as_it_was(
        self, store: LightningStore, clock: FakeClock, fields: dict[str, Any]
    ) -> None:
        started = await begin(store)
        fields = fields | {"rollout_id": started.rollout_id, "attempt_id": started.attempt.attempt_id}
        stored = await store.add_span(Span(**fields))
        assert stored == Span(**fields)
        reopened = await self.reopen_store(store, clock=clock) or store
        (found,) = await reopened.query_spans(started.rollout_id)
        assert found == stored
        assert found.model_dump(mode="json") == stored.model_dump(mode="json")
        found.attributes["mine"] = 1
        frozen: Any
        for frozen in (found.resource, *found.events):
            with pytest.raises(TypeError, match="cannot be changed"):
                frozen.attributes["mine"] = 1
        assert list(await reopened.query_spans(started.rollout_id)) == [stored]
        await reopened.aclose()

    async def test_no_sequence_id_ends_the_numbers_of_an_attempt(self, store: LightningStore) -> None:
        started = await begin(store)
        for number in (2**52 + 1, 2**63 - 1):
            with pytest.raises(InvalidRequest, match=f"sequence_id is {number}; it is at most {2**52}, or 0"):
                await store.add_many_spans([span_of(started), span_of(started, sequence_id=number)])
        assert list(await store.query_spans(started.rollout_id)) == []
        await store.add_span(span_of(started, sequence_id=2**52))
        following = present(await store.add_span(span_of(started)))
        assert following.sequence_id == 2**52 + 1
        place = started.rollout_id, started.attempt.attempt_id
        assert await store.get_next_span_sequence_id(*place) == 2**52 + 2

    async def test_each_attempt_has_its_own_numbers(self, store: LightningStore) -> None:
        one, two = await begin(store), await begin(store)
        pairs = [(item.rollout_id, item.attempt.attempt_id) for item in (one, two, one, one, two)]
        assert list(await store.get_many_span_sequence_ids(pairs)) == [1, 1, 2, 3, 2]
        again = await store.start_attempt(one.rollout_id)
        assert await store.get_next_span_sequence_id(one.rollout_id, again.attempt.attempt_id) == 1
        assert await store.get_next_span_sequence_id(*pairs[0]) == 4
        assert list(await store.get_many_span_sequence_ids([])) == []

    async def test_a_given_number_is_kept_and_never_given_again(self, store: LightningStore) -> None:
        started = await begin(store)
        reserved = await store.get_next_span_sequence_id(started.rollout_id, started.attempt.attempt_id)
        await store.add_span(span_of(started, "chosen", sequence_id=7))
        numbered = present(await store.add_span(span_of(started, "numbered")))
        late = present(await store.add_span(span_of(started, "late", sequence_id=reserved)))
        assert (reserved, numbered.sequence_id, late.sequence_id) == (1, 8, 1)
        assert [span.name for span in await store.query_spans(started.rollout_id)] == ["late", "chosen", "numbered"]

    async def test_numbers_are_unique_under_concurrency(self, store: LightningStore) -> None:
        require(store, "async_safe")
        started = await begin(store)
        pair = (started.rollout_id, started.attempt.attempt_id)
        numbers = await soon(asyncio.gather(*(store.get_next_span_sequence_id(*pair) for _ in range(20))))
        stored = await soon(asyncio.gather(*(store.add_span(span_of(started)) for _ in range(20))))
        given = numbers + [span.sequence_id for span in stored if span is not None]
        assert sorted(given) == list(range(1, 41))

    async def test_the_same_span_twice_is_one_effect(self, store: LightningStore) -> None:
        started = await begin(store)
        span = span_of(started)
        assert await store.add_span(span) is not None
        assert await store.add_span(span) is None
        other = span_of(started)
        assert [item.span_id for item in await store.add_many_spans([span, other, other])] == [other.span_id]
        assert (await store.query_spans(started.rollout_id)).total == 2
        assert (await store.statistics())["total_spans"] == 2

    async def test_the_same_span_id_in_another_attempt_is_another_span(self, store: LightningStore) -> None:
        first = await begin(store)
        second = await store.start_attempt(first.rollout_id)
        assert await store.add_span(span_of(first, span_id="00000000000000aa")) is not None
        assert await store.add_span(span_of(second, span_id="00000000000000aa")) is not None

    async def test_spans_of_many_attempts_are_added_at_once(self, store: LightningStore) -> None:
        one, two = await begin(store), await begin(store)
        stored = await store.add_many_spans([span_of(one), span_of(two), span_of(one)])
        assert [span.sequence_id for span in stored] == [1, 1, 2]
        assert await rollout_status(store, one.rollout_id) == await rollout_status(store, two.rollout_id) == "running"
        assert list(await store.add_many_spans([])) == []

    async def test_no_span_is_kept_when_an_attempt_is_unknown(self, store: LightningStore) -> None:
        started = await begin(store)
        lost = span_of(started).model_copy(update={"attempt_id": "at-none"})
        with pytest.raises(NotFound, match="at-none"):
            await store.add_many_spans([span_of(started), lost])
        with pytest.raises(NotFound, match="ro-none"):
            await store.add_span(span_of(started).model_copy(update={"rollout_id": "ro-none"}))
        assert (await store.statistics())["total_spans"] == 0
        assert await rollout_status(store, started.rollout_id) == "preparing"

    async def test_a_span_belongs_to_an_attempt_by_its_own_id(self, store: LightningStore) -> None:
        started = await begin(store)
        with pytest.raises(InvalidRequest, match="own id; got 'latest'"):
            await store.add_span(span_of(started).model_copy(update={"attempt_id": "latest"}))
        with pytest.raises(InvalidRequest, match="own id; got 'latest'"):
            await store.get_next_span_sequence_id(started.rollout_id, "latest")

    async def test_spans_that_come_after_the_end_are_kept(self, store: LightningStore) -> None:
        started = await begin(store)
        await store.update_attempt(started.rollout_id, "latest", status="succeeded")
        assert await store.add_span(span_of(started, "late")) is not None
        assert [span.name for span in await store.query_spans(started.rollout_id)] == ["late"]
        assert await rollout_status(store, started.rollout_id) == "succeeded"

    async def test_spans_are_found_by_attempt(self, store: LightningStore) -> None:
        first = await begin(store)
        assert list(await store.query_spans((await store.enqueue_rollout("b")).rollout_id, "latest")) == []
        await store.add_many_spans([span_of(first, "one"), span_of(first, "two")])
        second = await store.start_attempt(first.rollout_id)
        assert list(await store.query_spans(first.rollout_id, "latest")) == []
        await store.add_span(span_of(second, "three"))
        names = {
            attempt_id: sorted(span.name for span in await store.query_spans(first.rollout_id, attempt_id))
            for attempt_id in (None, "latest", first.attempt.attempt_id)
        }
        assert names == {None: ["one", "three", "two"], "latest": ["three"], first.attempt.attempt_id: ["one", "two"]}

    async def test_an_opentelemetry_span_is_converted_and_kept(self, store: LightningStore) -> None:
        started = await begin(store)
        provider = TracerProvider(shutdown_on_exit=False)
        with provider.get_tracer("test").start_as_current_span("call", attributes={"gen_ai.system": "x"}) as live:
            live.add_event("token", {"index": 1})
        ids = started.rollout_id, started.attempt.attempt_id
        stored = present(await store.add_otel_span(*ids, live))  # type: ignore[arg-type]
        assert (stored.name, stored.sequence_id, stored.attributes) == ("call", 1, {"gen_ai.system": "x"})
        assert [event.name for event in stored.events] == ["token"]
        assert await store.add_otel_span(*ids, live, sequence_id=9) is None  # type: ignore[arg-type]
        assert await rollout_status(store, started.rollout_id) == "running"

    async def test_an_attribute_that_spans_do_not_take_is_refused(self, store: LightningStore) -> None:
        started = await begin(store)
        span = span_of(started)
        span.attributes["bad"] = object()
        with pytest.raises(InvalidRequest, match="attribute 'bad': a span attribute cannot be a object"):
            await store.add_span(span)
        assert (await store.statistics())["total_spans"] == 0

    # Rewards: the attempt's metadata have the one that counts

    async def test_the_final_reward_is_that_of_the_last_span_that_has_one(self, store: LightningStore) -> None:
        started = await begin(store)
        await store.add_many_spans([reward_of(started, 0.25), span_of(started)])
        await check(store, started, 0.25)
        await store.add_many_spans([reward_of(started, 0.5, sequence_id=9), reward_of(started, 1.0, sequence_id=8)])
        await check(store, started, 0.5)
        await store.add_span(as_reported(reward_of(started, 2.0)))
        await check(store, started, 0.5)

    async def test_a_reward_that_was_reported_counts_where_the_runner_has_none(self, store: LightningStore) -> None:
        started = await begin(store)
        await store.add_span(as_reported(reward_of(started, 0.25)))
        await check(store, started, 0.25)
        await store.update_attempt(started.rollout_id, "latest", status="succeeded")
        await store.add_span(as_reported(reward_of(started, 0.5)))
        await check(store, started, 0.25)

    async def test_a_reward_of_a_judge_counts_after_the_end(self, store: LightningStore) -> None:
        started = await begin(store)
        await store.add_span(reward_of(started, 0.25))
        await store.update_attempt(started.rollout_id, "latest", status="succeeded")
        await store.add_span(reward_of(started, 0.5))
        await check(store, started, 0.5)
        silent = await begin(store)
        await store.update_attempt(silent.rollout_id, "latest", status="succeeded")
        await store.add_span(reward_of(silent, 1.0))
        await check(store, silent, 1.0)

    async def test_the_final_reward_stays_where_metadata_are_replaced(self, store: LightningStore) -> None:
        started = await begin(store)
        await store.add_span(reward_of(started, 0.25))
        ids = started.rollout_id, started.attempt.attempt_id
        mine = {FINAL_REWARD: {"value": 9.0, "sequence_id": 99, "reported": False}}
        attempt = await store.update_attempt(*ids, metadata={"note": 1, **mine})
        assert present(attempt.metadata)["note"] == 1
        await store.update_attempt(*ids, add_metadata=mine)
        await check(store, started, 0.25)

    @pytest.mark.parametrize("sequence_id", [0, 1])
    async def test_a_delivery_that_is_repeated_leaves_the_reward_true(
        self, store: LightningStore, sequence_id: int
    ) -> None:
        started = await begin(store)
        first = reward_of(started, 0.25, sequence_id=sequence_id)
        for span in (first, reward_of(started, 0.5, sequence_id=sequence_id and 2), first):
            await store.add_span(span)
        attempt = present(await store.get_latest_attempt(started.rollout_id))
        # Which number a span has that the store numbered earlier is not known here: then the spans tell.
        assert final_reward_in(attempt.metadata) == (0.5 if sequence_id else None)

    @pytest.mark.parametrize("value", ["1" + "0" * 400, "NaN", "null", '"much"', "[" * 500 + "]" * 500])
    async def test_a_reward_that_is_no_number_is_kept_and_fails_nothing(
        self, store: LightningStore, value: str
    ) -> None:
        started = await begin(store)
        broken = span_of(started, attributes={"agentops.entity.output": f'{{"type": "reward", "value": {value}}}'})
        assert await store.add_many_spans([broken, reward_of(started, 0.25)])
        attempt = await store.update_attempt(started.rollout_id, "latest", status="succeeded")
        assert final_reward_in(attempt.metadata) == (0.25 if value == "null" else None)
        assert len(await store.query_spans(started.rollout_id, "latest")) == 2
