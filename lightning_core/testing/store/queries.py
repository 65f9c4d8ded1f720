"""Filters, order and pages of rollouts, attempts and spans."""

from typing import Any

import pytest

from lightning_core.errors import InvalidRequest
from lightning_core.store import LightningStore
from lightning_core.testing.clock import FakeClock
from lightning_core.testing.store.base import StoreBehaviour, begin, span_of
from lightning_core.types import EnqueueRolloutRequest

ORDERS: tuple[Any, ...] = ("asc", "desc")

BAD_PAGES: list[tuple[dict[str, Any], str]] = [
    ({"limit": -2}, "limit is -2; it is -1"),
    ({"limit": "3"}, "limit is '3'; it is -1"),
    ({"offset": -1}, "offset is -1; it counts from 0"),
    ({"offset": 0.5}, r"offset is 0\.5; it counts from 0"),
    ({"sort_order": "up"}, "sort_order is 'up'; it is 'asc' or 'desc'"),
    ({"sort_by": "statu"}, "cannot sort .* by 'statu'"),
]


class QueryBehaviour(StoreBehaviour):
    """A query returns what its conditions say, in the order that it asks for, page by page."""

    async def test_rollouts_are_filtered_by_every_condition(self, store: LightningStore) -> None:
        modes = ("train", "val", "train", None)
        rollouts = await store.enqueue_many_rollouts(
            [EnqueueRolloutRequest(input=i, mode=m) for i, m in enumerate(modes)]
        )
        ids = [rollout.rollout_id for rollout in rollouts]
        await store.update_rollout(ids[0], status="cancelled")
        await store.update_rollout(ids[3], status="cancelled")

        async def found(**query: Any) -> list[int]:
            page = await store.query_rollouts(**query)
            assert page.total == len(page)
            return [rollout.input for rollout in page]

        assert await found() == [0, 1, 2, 3]
        assert await found(status_in=["cancelled"]) == [0, 3]
        assert await found(status_in=["cancelled", "queuing"]) == [0, 1, 2, 3]
        assert await found(status_in=[]) == []
        assert await found(mode_in=["train"]) == [0, 2]
        assert await found(rollout_id_in=[ids[2], ids[1], "ro-none"]) == [1, 2]
        assert await found(rollout_id_contains=ids[1][-8:]) == [1]
        assert await found(mode_in=["train"], status_in=["cancelled"]) == [0]
        assert await found(mode_in=["val"], status_in=["cancelled"], filter_logic="or") == [0, 1, 3]
        assert await found(rollout_id_in=[ids[2]], status_in=["cancelled"], filter_logic="or") == [0, 2, 3]
        assert await found(filter_logic="or") == [0, 1, 2, 3]

    async def test_older_names_of_conditions_still_work(self, store: LightningStore) -> None:
        first, second = await store.enqueue_rollout(1), await store.enqueue_rollout(2)
        await store.update_rollout(first.rollout_id, status="cancelled")
        assert [item.input for item in await store.query_rollouts(status=["queuing"])] == [2]
        assert [item.input for item in await store.query_rollouts(rollout_ids=[first.rollout_id])] == [1]
        both = await store.query_rollouts(rollout_ids=[first.rollout_id], rollout_id_in=[second.rollout_id])
        assert [item.input for item in both] == [2]

    async def test_rollouts_are_sorted_and_none_comes_before_every_value(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        for i, mode in enumerate(("val", None, "train")):
            await store.enqueue_rollout(i, mode=mode)  # type: ignore[arg-type]
            await clock.advance(1)

        async def found(sort_by: str, sort_order: Any = "asc") -> list[int]:
            return [item.input for item in await store.query_rollouts(sort_by=sort_by, sort_order=sort_order)]

        assert await found("mode") == [1, 2, 0]
        assert await found("mode", "desc") == [0, 2, 1]
        assert await found("start_time", "desc") == [2, 1, 0]
        assert await found("status") == [0, 1, 2]

    async def test_pages_cover_all_matches_once(self, store: LightningStore) -> None:
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(7)])
        pages = [await store.query_rollouts(limit=3, offset=offset) for offset in (0, 3, 6, 9)]
        assert [[item.input for item in page] for page in pages] == [[0, 1, 2], [3, 4, 5], [6], []]
        assert {(page.total, page.limit) for page in pages} == {(7, 3)}
        assert [page.offset for page in pages] == [0, 3, 6, 9]
        counted = await store.query_rollouts(limit=0)
        assert (len(counted), counted.total) == (0, 7)
        assert [item.input for item in await store.query_rollouts(offset=5)] == [5, 6]

    async def test_pages_join_to_the_whole(self, store: LightningStore, clock: FakeClock) -> None:
        for mode in ("train", "val", "val"):
            request = EnqueueRolloutRequest(input="task", mode=mode)
            rollouts = await store.enqueue_many_rollouts([request] * 3)  # with the same time of start
            await store.update_rollout(rollouts[1].rollout_id, status="cancelled")
            await clock.advance(1)
        filters = [{"status_in": ["cancelled", "queuing"]}, {"status_in": ["cancelled"], "mode_in": ["val"]}, {}]
        orders = [{"sort_by": by, "sort_order": order} for by in (None, "start_time", "status") for order in ORDERS]
        for query in ({**filtered, **ordered} for filtered in filters for ordered in orders):
            whole = [rollout.rollout_id for rollout in await store.query_rollouts(**query)]
            pages = [await store.query_rollouts(**query, limit=4, offset=at) for at in range(0, len(whole) + 4, 4)]
            assert [rollout.rollout_id for page in pages for rollout in page] == whole, query
            assert {page.total for page in pages} == {len(whole)}

    async def test_a_found_rollout_comes_with_its_newest_attempt(self, store: LightningStore) -> None:
        started = await begin(store)
        newer = await store.start_attempt(started.rollout_id)
        assert list(await store.query_rollouts()) == [newer]

    @pytest.mark.parametrize(("page", "message"), BAD_PAGES, ids=str)
    async def test_a_bad_page_is_refused_with_what_it_may_be(
        self, store: LightningStore, page: dict[str, Any], message: str
    ) -> None:
        started = await begin(store)
        for query in (
            store.query_rollouts(**page),
            store.query_attempts(started.rollout_id, **page),
            store.query_spans(started.rollout_id, **page),
            store.query_resources(**page),
            store.query_workers(**page),
        ):
            with pytest.raises(InvalidRequest, match=message):
                await query

    @pytest.mark.parametrize(
        ("query", "message"),
        [
            ({"filter_logic": "xor"}, "filter_logic is 'xor'; it is 'and' or 'or'"),
            ({"status_in": "queuing"}, "status_in is 'queuing'; it takes a sequence"),
            ({"status_in": ["done"]}, "status_in has 'done'; it takes 'queuing', 'preparing'"),
            ({"mode_in": ["exam"]}, "mode_in has 'exam'; it takes 'train', 'val', 'test'"),
            ({"rollout_id_in": [[1]]}, r"rollout_id_in.*\[1\]"),
            ({"rollout_id_contains": 3}, "rollout_id_contains is 3"),
            ({"sort_by": "start_tim"}, "Did you mean 'start_time'"),
            ({"sort_by": "input"}, "cannot sort Rollouts by 'input'"),
        ],
        ids=str,
    )
    async def test_a_bad_filter_is_refused_with_what_it_may_be(
        self, store: LightningStore, query: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(InvalidRequest, match=message):
            await store.query_rollouts(**query)

    async def test_attempts_are_sorted_and_paged(self, store: LightningStore) -> None:
        started = await begin(store, worker_id="w-9")
        for worker_id in ("w-1", "w-5"):
            await store.start_attempt(started.rollout_id, worker_id)

        async def found(**query: Any) -> list[int]:
            return [item.sequence_id for item in await store.query_attempts(started.rollout_id, **query)]

        assert await found() == [1, 2, 3]
        assert await found(sort_order="desc") == [3, 2, 1]
        assert await found(sort_by="worker_id") == [2, 3, 1]
        assert await found(sort_by=None) == [1, 2, 3]
        assert await found(limit=1, offset=1) == [2]
        assert (await store.query_attempts(started.rollout_id, limit=1)).total == 3

    async def test_spans_are_filtered_by_every_condition(self, store: LightningStore) -> None:
        started = await begin(store)
        trace_a, trace_b = "a" * 32, "b" * 32
        await store.add_many_spans(
            [
                span_of(started, "chat.one", trace_id=trace_a, span_id="1" * 16),
                span_of(started, "tool", trace_id=trace_a, span_id="2" * 16, parent_id="1" * 16),
                span_of(started, "chat.two", trace_id=trace_b, span_id="3" * 16, parent_id="9" * 16),
            ]
        )

        async def found(**query: Any) -> list[str]:
            page = await store.query_spans(started.rollout_id, **query)
            assert page.total == len(page)
            return [span.name for span in page]

        assert await found(trace_id=trace_a) == ["chat.one", "tool"]
        assert await found(trace_id_contains="bbb") == ["chat.two"]
        assert await found(span_id="2" * 16) == ["tool"]
        assert await found(span_id_contains="33") == ["chat.two"]
        assert await found(parent_id="1" * 16) == ["tool"]
        assert await found(parent_id_contains="9") == ["chat.two"]
        assert await found(name="tool") == ["tool"]
        assert await found(name_contains="chat") == await found(name_contains=".") == ["chat.one", "chat.two"]
        assert await found(name_contains="$") == await found(name="$name") == []
        assert await found(name_contains="chat", trace_id=trace_a) == ["chat.one"]
        assert await found(name="tool", trace_id=trace_b, filter_logic="or") == ["tool", "chat.two"]
        assert await found(name="nothing") == []

    async def test_spans_are_sorted_and_paged(self, store: LightningStore) -> None:
        started = await begin(store)
        for name, number in (("c", 3), ("a", 1), ("b", 2)):
            await store.add_span(span_of(started, name, sequence_id=number, start_time=float(-number)))

        async def found(**query: Any) -> str:
            return "".join(span.name for span in await store.query_spans(started.rollout_id, **query))

        assert await found() == "abc"
        assert await found(sort_order="desc") == "cba"
        assert await found(sort_by=None) == "cab"
        assert await found(sort_by="start_time") == "cba"
        assert await found(limit=2) == "ab"
        assert await found(limit=2, offset=2) == "c"
        assert (await store.query_spans(started.rollout_id, limit=1, name_contains="")).total == 3
