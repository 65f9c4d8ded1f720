"""What goes in and comes out is a copy."""

import gc
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import BaseModel

from lightning_core.errors import InvalidRequest
from lightning_core.store import LightningStore
from lightning_core.testing.store.base import StoreBehaviour, span_of
from lightning_core.types import (
    LLM,
    Event,
    Link,
    NamedResources,
    OtelResource,
    PromptTemplate,
    RolloutConfig,
    SpanContext,
)
from lightning_core.types.frozen import FrozenDict


def spoil(value: Any) -> None:
    """Change every container and every model inside a value, in place; but for what refuses to be changed."""
    if isinstance(value, FrozenDict) or (isinstance(value, BaseModel) and value.model_config.get("frozen")):
        return
    if isinstance(value, BaseModel):
        for name, item in list(value.__dict__.items()):
            spoil(item)
            if isinstance(item, str | int | float):
                value.__dict__[name] = "spoiled"
    elif isinstance(value, dict):
        for item in value.values():
            spoil(item)
        value["spoiled"] = True
    elif isinstance(value, list):
        for item in value:
            spoil(item)
        value.append("spoiled")
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for item in value:
            spoil(item)


def as_data(value: Any) -> Any:
    """Return a value as plain data, to compare it later."""
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value


class CopyBehaviour(StoreBehaviour):
    """A caller may change what it gave and what it got."""

    async def test_a_rollout_is_copied_in_and_out(self, store: LightningStore) -> None:
        given: dict[str, Any] = {
            "input": {"messages": [{"content": ["a"]}]},
            "config": RolloutConfig(retry_condition=["failed"], max_attempts=2),
            "metadata": {"tags": [{"a": [1]}]},
        }
        queued, started = await store.enqueue_rollout(**given), await store.start_rollout(**given)
        await store.update_attempt(started.rollout_id, "latest", metadata={"nested": {"a": [1]}})
        for rollout_id in (queued.rollout_id, started.rollout_id):
            before = as_data(await store.get_rollout_by_id(rollout_id))
            spoil(given)
            spoil(queued)
            spoil(started)
            spoil(await store.get_rollout_by_id(rollout_id))
            spoil(list(await store.query_rollouts()))
            spoil(list(await store.wait_for_rollouts(rollout_ids=[rollout_id], timeout=0)))
            assert as_data(await store.get_rollout_by_id(rollout_id)) == before

    async def test_a_claimed_rollout_is_a_copy(self, store: LightningStore) -> None:
        rollout = await store.enqueue_rollout({"a": [1]}, metadata={"b": [2]})
        claimed = await store.dequeue_rollout("w-1")
        before = as_data(claimed)
        spoil(claimed)
        assert as_data(await store.get_rollout_by_id(rollout.rollout_id)) == before
        spoil(await store.start_attempt(rollout.rollout_id))
        after = as_data(await store.get_rollout_by_id(rollout.rollout_id))
        assert (after["input"], after["metadata"]) == ({"a": [1]}, {"b": [2]})

    async def test_what_an_update_was_given_is_copied(self, store: LightningStore) -> None:
        started = await store.start_rollout("a")
        given: dict[str, Any] = {"input": {"a": [1]}, "config": RolloutConfig(retry_condition=["failed"])}
        attempt_metadata = {"failure": {"lines": ["x"]}}
        returned = await store.update_rollout(started.rollout_id, **given, metadata={"m": [given["input"]]})
        attempt = await store.update_attempt(started.rollout_id, "latest", metadata=attempt_metadata)
        before = as_data(await store.get_rollout_by_id(started.rollout_id))
        for value in (given, attempt_metadata, returned, attempt):
            spoil(value)
        spoil(await store.get_latest_attempt(started.rollout_id))
        spoil(list(await store.query_attempts(started.rollout_id)))
        assert as_data(await store.get_rollout_by_id(started.rollout_id)) == before

    async def test_a_span_is_copied_in_and_out(self, store: LightningStore) -> None:
        started = await store.start_rollout("a")
        context = SpanContext(trace_id="a" * 32, span_id="b" * 16, trace_state={"vendor": "x"})
        span = span_of(started, attributes={"list": [1, [2]], "map": {"a": [3]}}, parent_id="c" * 16)
        span.resource = OtelResource(attributes={"service": ["x"]})
        span.events.append(Event(name="event", attributes={"list": [1]}))
        span.links.append(Link(context=context, attributes={"list": [1]}))
        span.context = context
        stored = await store.add_span(span)
        found = await store.query_spans(started.rollout_id)
        before = as_data(found[0])
        for value in (span, stored, list(found)):
            spoil(value)
        spoil(list(await store.query_spans(started.rollout_id)))
        assert as_data((await store.query_spans(started.rollout_id))[0]) == before
        assert before["attributes"] == {"list": [1, [2]], "map": {"a": [3]}}

    async def test_resources_are_copied_in_and_out(self, store: LightningStore) -> None:
        given: NamedResources = {
            "prompt": PromptTemplate(template="a"),
            "model": LLM(endpoint="http://host", model="m", sampling_parameters={"stop": ["a", {"b": [1]}]}),
        }
        added = await store.add_resources(given)
        before = as_data(await store.get_latest_resources())
        spoil(added)
        spoil(given)
        spoil(await store.get_latest_resources())
        spoil(await store.get_resources_by_id(before["resources_id"]))
        spoil(list(await store.query_resources()))
        assert as_data(await store.get_latest_resources()) == before
        assert before["resources"]["model"]["sampling_parameters"] == {"stop": ["a", {"b": [1]}]}

    async def test_workers_and_state_are_copied_in_and_out(self, store: LightningStore) -> None:
        stats, state = {"gpus": [{"load": [0.5]}]}, {"beam": [{"text": ["a"]}]}
        returned = await store.update_worker("w-1", stats)
        await store.save_state("apo", state)
        before = as_data(await store.get_worker_by_id("w-1"))
        spoil([stats, state, returned, await store.get_worker_by_id("w-1"), await store.load_state("apo")])
        spoil(list(await store.query_workers()))
        assert as_data(await store.get_worker_by_id("w-1")) == before
        assert await store.load_state("apo") == {"beam": [{"text": ["a"]}]}

    async def test_an_input_that_contains_itself_is_refused(self, store: LightningStore) -> None:
        endless: list[object] = []
        endless.append(endless)
        gc.collect()  # what another test left: its finalizer would fail where the stack is used up
        with pytest.raises(InvalidRequest):
            await store.enqueue_rollout({"task": endless})
        assert await store.dequeue_rollout() is None
