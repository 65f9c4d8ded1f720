"""The schema's versions, and the way from one to the next."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from lightning_sqlite import SqliteLightningStore, database
from lightning_sqlite.schema import MIGRATIONS, migrate, statements, version_of

from lightning_core.types import Span

ADDS_A_COLUMN = """
    -- An example; of two statements.
    ALTER TABLE run ADD COLUMN note TEXT NOT NULL DEFAULT '; none';
    UPDATE run SET note = 'kept; and moved';
"""


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


async def test_an_older_file_is_brought_forward_with_all_that_it_holds(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteLightningStore(path, run_id="run-1")
    started = await store.start_rollout({"question": 1})
    ids = {"rollout_id": started.rollout_id, "attempt_id": started.attempt.attempt_id}
    await store.add_span(Span.from_attributes(attributes={}, **ids))
    queued = await store.enqueue_rollout("next")
    await store.aclose()
    newer = (*MIGRATIONS, ADDS_A_COLUMN)
    monkeypatch.setattr(database, "MIGRATIONS", newer)
    monkeypatch.setattr(database, "migrate", lambda connection: migrate(connection, newer))
    store = SqliteLightningStore(path, run_id="run-1")
    assert (await store.query_spans(started.rollout_id)).total == 1
    claimed = await store.dequeue_rollout()
    assert claimed is not None
    assert claimed.rollout_id == queued.rollout_id
    await store.aclose()
    with closing(sqlite3.connect(path)) as connection:
        assert version_of(connection) == len(newer)
        assert connection.execute("SELECT run_id, note FROM run").fetchall() == [("run-1", "kept; and moved")]


async def test_a_file_of_the_first_version_knows_the_requests_it_was_asked(
    path: Path, connection: sqlite3.Connection
) -> None:
    migrate(connection, MIGRATIONS[:1])
    connection.execute("INSERT INTO run VALUES (1, 'run-1', 0, 0, 0)")
    connection.execute("""INSERT INTO document VALUES (1, 1, 'state', 'apo', 1, 1, '["r-1"]', '{"round": 1}')""")
    connection.close()
    store = SqliteLightningStore(path, run_id="run-1")
    await store.save_state("apo", {"round": 2}, request_id="r-2")
    await store.save_state("apo", {"round": 1}, request_id="r-1")
    assert await store.load_state("apo") == {"round": 2}
    await store.aclose()


def test_a_new_file_gets_the_newest_version(connection: sqlite3.Connection) -> None:
    migrate(connection)
    assert version_of(connection) == len(MIGRATIONS)
    before = connection.total_changes
    migrate(connection)
    assert connection.total_changes == before


def test_a_migration_happens_as_a_whole_or_not_at_all(connection: sqlite3.Connection) -> None:
    migrate(connection)
    schema = connection.execute("SELECT sql FROM sqlite_master ORDER BY name").fetchall()
    broken = "ALTER TABLE run ADD COLUMN note TEXT;\nALTER TABLE nowhere ADD COLUMN note TEXT;"
    with pytest.raises(sqlite3.OperationalError, match="no such table: nowhere"):
        migrate(connection, (*MIGRATIONS, broken))
    assert version_of(connection) == len(MIGRATIONS)
    assert connection.execute("SELECT sql FROM sqlite_master ORDER BY name").fetchall() == schema


def test_a_script_is_split_where_statements_end() -> None:
    assert len(statements(ADDS_A_COLUMN)) == 2
    with pytest.raises(ValueError, match="ends within a statement"):
        statements("CREATE TABLE a (b TEXT)")


def test_the_released_versions_are_never_changed() -> None:
    """A changed text here would leave the files of those who have that version without the change."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, MIGRATIONS[:1])
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables == {"run", "rollout", "task", "claim", "span", "source", "reserved", "document"}
