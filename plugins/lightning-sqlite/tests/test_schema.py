"""What the tables and their indexes are for: large spans, pages, ids that are named."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from lightning_sqlite import SqliteLightningStore
from lightning_sqlite.rollouts import COLUMNS, select as statement_of
from lightning_sqlite.schema import create_tables

from lightning_core.store.query import make_query, select
from lightning_core.types import Rollout, Span


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


async def test_large_spans_are_compressed(path: Path, connection: sqlite3.Connection) -> None:
    store = SqliteLightningStore(path, run_id="run-1")
    started = await store.start_rollout("long")
    ids: dict[str, Any] = {"rollout_id": started.rollout_id, "attempt_id": started.attempt.attempt_id}
    tokens = [number * 7 % 1_000 for number in range(16_000)]
    written = [
        Span.from_attributes(**ids, sequence_id=number, name=f"call {number}", attributes={"prompt_token_ids": each})
        for number, each in enumerate((tokens, [1, 2], tokens), start=1)
    ]
    await store.add_many_spans(written)
    await store.aclose()
    lengths = [length for (length,) in connection.execute("SELECT length(body) FROM span ORDER BY sequence_id")]
    plain = b'{"a":{"prompt_token_ids":[%s]}}' % ",".join(map(str, tokens)).encode()
    assert lengths[0] < len(plain) / 4
    assert lengths[1] == len(b'{"a":{"prompt_token_ids":[1,2]}}')
    connection.close()
    store = SqliteLightningStore(path, run_id="run-1")
    found = await store.query_spans(started.rollout_id)
    assert [each.attributes for each in found] == [each.attributes for each in written]
    assert [each.name for each in await store.query_spans(started.rollout_id, name_contains="call 1")] == ["call 1"]
    by_end = await store.query_spans(started.rollout_id, sort_by="attempt_id", limit=1)
    assert by_end.total == 3
    await store.aclose()


async def test_rollouts_are_found_page_by_page(path: Path, connection: sqlite3.Connection) -> None:
    random, kept = Random(1), 10_000  # of which some queries match more than are sorted
    create_tables(connection)
    connection.execute("INSERT INTO run VALUES (1, 'run-1', ?, 0, 0)", (kept,))
    connection.execute("BEGIN")
    for number in range(1, kept + 1):
        status, mode = random.choice(["failed", "succeeded", "queuing"]), random.choice(["val", "train", None])
        start = number // 700 - random.choice([0, 0, 0, 1])  # callers may write in another order than they came
        connection.execute(
            "INSERT INTO rollout VALUES (?, 1, ?, ?, ?, NULL, ?, NULL, 1, NULL, NULL, ?)",
            (number, f"ro-{number}", status, mode, start, b"[[],null,[],[]]"),
        )
        connection.execute("INSERT INTO task VALUES (?, ?)", (number, b"[1,null,null]"))
    connection.execute("COMMIT")
    connection.close()
    store = SqliteLightningStore(path, run_id="run-1")
    await store.backend.delete_rollouts("run-1", [f"ro-{each}" for each in range(1_500, 1_700)])
    for each in await store.query_rollouts(status_in=["queuing"], limit=50, offset=500):
        await store.update_rollout(each.rollout_id, status="cancelled", mode="test")
    everything = list(await store.query_rollouts())
    for _ in range(40):
        query = make_query(
            Rollout,
            status_in=random.choice([None, ["failed"], ["succeeded", "queuing"], ["cancelled"]]),
            mode_in=random.choice([None, ["val"], ["train", "test"]]),
            filter_logic=random.choice(["and", "or"]),
            sort_by=random.choice([None, "start_time"]),
            sort_order=random.choice(["asc", "desc"]),
            limit=random.choice([1, 20, 300]),
            offset=random.randrange(kept),
        )
        found, total = await store.backend.find("run-1", query)
        page, matching = select(everything, query)
        assert ([each.rollout for each in found], total) == (page, matching)
    await store.aclose()


def test_rollouts_that_are_named_are_found_by_their_ids(connection: sqlite3.Connection) -> None:
    create_tables(connection)
    query = make_query(Rollout, rollout_id_in=["ro-1", "ro-2"], status_in=["failed"], sort_by="start_time")
    statement, parameters = statement_of(COLUMNS, 1, query)
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]
    assert "rollout_id=?" in plan[0]
