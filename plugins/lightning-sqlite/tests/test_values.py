"""What a file keeps of values: everything that JSON can hold; the rest is refused by name."""

import re
from pathlib import Path
from typing import Any

import pytest
from lightning_sqlite import SqliteLightningStore

from lightning_core.errors import InvalidRequest
from lightning_core.types import PromptTemplate, RolloutConfig, Span


def nested(depth: int) -> Any:
    value: Any = "deep"
    for _ in range(depth):
        value = [value]
    return value


async def test_a_tuple_comes_back_as_a_list_also_before_the_file_is_opened_again(store: SqliteLightningStore) -> None:
    queued = await store.enqueue_rollout({"pair": (1, (2, float("nan")))})
    found = await store.get_rollout_by_id(queued.rollout_id)
    assert found is not None
    assert str(queued.input) == str(found.input) == "{'pair': [1, [2, nan]]}"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1, 2}, "the input of rollout ro-{id} is of type set; a durable store keeps what JSON can hold"),
        ({"a": [RolloutConfig()]}, "the input of rollout ro-{id}['a'][0] is of type RolloutConfig; "),
        (b"raw", "the input of rollout ro-{id} is of type bytes; "),
        ({1: "a"}, "the input of rollout ro-{id} has the key 1; in what a durable store keeps, keys are strings"),
        ({"a": "\ud800"}, "the input of rollout ro-{id}['a'] is not valid Unicode"),
        (nested(300), "this cannot be kept as JSON"),
    ],
)
async def test_an_input_that_json_cannot_hold_is_refused(store: SqliteLightningStore, value: Any, message: str) -> None:
    pattern = re.escape(message).replace(re.escape("{id}"), "[0-9a-f]+")
    with pytest.raises(InvalidRequest, match=pattern):
        await store.enqueue_rollout(value)
    assert (await store.statistics())["total_rollouts"] == 0
    assert (await store.enqueue_rollout("next")).status == "queuing"


async def test_what_else_json_cannot_hold_is_refused_by_name(store: SqliteLightningStore) -> None:
    started = await store.start_rollout("a", worker_id="w-1")
    attempt_id = started.attempt.attempt_id
    with pytest.raises(InvalidRequest, match=rf"the metadata of attempt {attempt_id}\['a'\] is of type set"):
        await store.update_attempt(started.rollout_id, attempt_id, metadata={"a": {1}})
    with pytest.raises(InvalidRequest, match=r"the metadata of rollout ro-.*\['a'\] is of type set"):
        await store.update_rollout(started.rollout_id, metadata={"a": {1}})
    with pytest.raises(InvalidRequest, match=r"workers 'w-1'\['heartbeat_stats'\]\['a'\] is of type set"):
        await store.update_worker("w-1", {"a": {1}})
    with pytest.raises(InvalidRequest, match=r"resources .*\['template'\] is not valid Unicode"):
        await store.add_resources({"p": PromptTemplate(template="\ud800")})
    ids = {"rollout_id": started.rollout_id, "attempt_id": attempt_id}
    for wrong in ({"name": "\ud800"}, {"sequence_id": 2**70}, {"attributes": {"a": "\ud800"}}):
        with pytest.raises(InvalidRequest):
            await store.add_span(Span.from_attributes(attributes={}, **ids).model_copy(update=wrong))
    assert (await store.statistics())["total_spans"] == 0


async def test_the_room_of_dropped_content_is_used_again(path: Path) -> None:
    store = SqliteLightningStore(path)

    async def add_rollouts() -> list[str]:
        ids = []
        for _ in range(40):
            started = await store.start_rollout("a")
            said = {"gen_ai.prompt.0.content": "a" * 3_000, "gen_ai.usage.input_tokens": 7}
            of = {"rollout_id": started.rollout_id, "attempt_id": started.attempt.attempt_id}
            spans = [Span.from_attributes(**of, attributes=said, name=str(number)) for number in range(10)]
            await store.add_many_spans(spans)
            await store.update_rollout(started.rollout_id, status="succeeded")
            ids.append(started.rollout_id)
        return ids

    sizes = []
    for _ in range(4):
        ids = await add_rollouts()
        await store.drop_content(ids)
        assert [span.name for span in await store.query_spans(ids[0])] == [str(number) for number in range(10)]
        await store.aclose()
        sizes.append(path.stat().st_size)  # noqa: ASYNC240  # no one else waits
        store = SqliteLightningStore(path, run_id=store.run_id)
    await store.aclose()
    assert sizes[-1] < 1.5 * sizes[0], sizes
