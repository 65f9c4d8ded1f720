"""The tables, and how a file of an older version gets them."""

import sqlite3
from collections.abc import Sequence

APPLICATION_ID = 0x41474C53
"""Marks a file as ours: "AGLS"."""

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE run (
        run INTEGER PRIMARY KEY,
        run_id TEXT NOT NULL UNIQUE,
        rollouts INTEGER NOT NULL,
        attempts INTEGER NOT NULL,
        spans INTEGER NOT NULL
    );
    -- What changes often. `ticket` is the place in the queue, `deadline` when the record has to be looked at;
    -- `state` holds the attempts. All blobs are JSON.
    CREATE TABLE rollout (
        rollout INTEGER PRIMARY KEY,
        run INTEGER NOT NULL,
        rollout_id TEXT NOT NULL,
        status TEXT NOT NULL,
        mode TEXT,
        resources_id TEXT,
        start_time REAL NOT NULL,
        end_time REAL,
        revision INTEGER NOT NULL,
        ticket INTEGER,
        deadline REAL,
        state BLOB NOT NULL,
        UNIQUE (run, rollout_id)
    );
    CREATE INDEX rollout_queued ON rollout (run, ticket) WHERE ticket IS NOT NULL;
    CREATE INDEX rollout_due ON rollout (run, deadline) WHERE deadline IS NOT NULL;
    -- What hardly ever changes: input, metadata, config.
    CREATE TABLE task (
        rollout INTEGER PRIMARY KEY,
        body BLOB NOT NULL
    );
    CREATE TABLE claim (
        run INTEGER NOT NULL,
        request_id TEXT NOT NULL,
        position INTEGER NOT NULL,
        rollout INTEGER NOT NULL,
        PRIMARY KEY (run, request_id, position)
    ) WITHOUT ROWID;
    CREATE INDEX claim_of_rollout ON claim (rollout);
    -- `attempt` is the attempt's sequence_id.
    CREATE TABLE span (
        span INTEGER PRIMARY KEY,
        rollout INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        span_id TEXT NOT NULL,
        sequence_id INTEGER NOT NULL,
        trace_id TEXT NOT NULL,
        parent_id TEXT,
        name TEXT NOT NULL,
        start_time REAL,
        end_time REAL,
        source INTEGER NOT NULL,
        body BLOB NOT NULL
    );
    CREATE UNIQUE INDEX span_of_attempt ON span (rollout, attempt, span_id);
    -- OpenTelemetry's resource of spans, the same for thousands of them.
    CREATE TABLE source (
        source INTEGER PRIMARY KEY,
        run INTEGER NOT NULL,
        body BLOB NOT NULL,
        UNIQUE (run, body)
    );
    CREATE TABLE reserved (
        rollout INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        last_sequence_id INTEGER NOT NULL,
        PRIMARY KEY (rollout, attempt)
    ) WITHOUT ROWID;
    CREATE TABLE document (
        document INTEGER PRIMARY KEY,
        run INTEGER NOT NULL,
        kind TEXT NOT NULL,
        key TEXT NOT NULL,
        revision INTEGER NOT NULL,
        written INTEGER NOT NULL,
        requests BLOB NOT NULL,
        value BLOB NOT NULL,
        UNIQUE (run, kind, key)
    );
    """,
    """
    -- Requests that a rollout or a document, the owner, has no more room for. They are kept for a day.
    CREATE TABLE request (
        run INTEGER NOT NULL,
        owner TEXT NOT NULL,
        request_id TEXT NOT NULL,
        at REAL NOT NULL,
        body BLOB NOT NULL,
        PRIMARY KEY (run, owner, request_id)
    ) WITHOUT ROWID;
    CREATE INDEX request_by_age ON request (at);
    """,
    """
    -- Pages of rollouts, and how many there are: in the order of insertion and by start, of all or of one status. The
    -- other columns are there so that what does not match, or is skipped, is not looked up in the table.
    CREATE INDEX rollout_of_run ON rollout (run, rollout, status, mode);
    CREATE INDEX rollout_by_start ON rollout (run, start_time, rollout, status, mode);
    CREATE INDEX rollout_by_status ON rollout (run, status, rollout, mode);
    CREATE INDEX rollout_by_status_and_start ON rollout (run, status, start_time, rollout, mode);
    """,
    """
    -- The body of a large span is compressed by zlib, which earlier versions of this package do not read. What is there
    -- stays as it is.
    """,
    """
    -- How many rollouts there are, so that nobody counts them: of each status and mode ('' for none), in each block of
    -- 4,096 numbers, with bounds of their start times, which stay as wide when rollouts leave.
    CREATE TABLE tally (
        run INTEGER NOT NULL,
        block INTEGER NOT NULL,
        status TEXT NOT NULL,
        mode TEXT NOT NULL,
        rollouts INTEGER NOT NULL,
        earliest REAL NOT NULL,
        latest REAL NOT NULL,
        PRIMARY KEY (run, block, status, mode)
    ) WITHOUT ROWID;
    INSERT INTO tally
        SELECT run, rollout >> 12, status, coalesce(mode, ''), count(*), min(start_time), max(start_time)
        FROM rollout GROUP BY 1, 2, 3, 4;
    CREATE TRIGGER rollout_inserted AFTER INSERT ON rollout BEGIN
        INSERT INTO tally VALUES (
            new.run, new.rollout >> 12, new.status, coalesce(new.mode, ''), 1, new.start_time, new.start_time
        ) ON CONFLICT (run, block, status, mode) DO UPDATE SET
            rollouts = rollouts + 1,
            earliest = min(earliest, excluded.earliest),
            latest = max(latest, excluded.latest);
    END;
    CREATE TRIGGER rollout_deleted AFTER DELETE ON rollout BEGIN
        UPDATE tally SET rollouts = rollouts - 1
        WHERE run = old.run AND block = old.rollout >> 12 AND status = old.status AND mode = coalesce(old.mode, '');
    END;
    CREATE TRIGGER rollout_updated AFTER UPDATE OF status, mode, start_time ON rollout BEGIN
        UPDATE tally SET rollouts = rollouts - 1
        WHERE run = old.run AND block = old.rollout >> 12 AND status = old.status AND mode = coalesce(old.mode, '');
        INSERT INTO tally VALUES (
            new.run, new.rollout >> 12, new.status, coalesce(new.mode, ''), 1, new.start_time, new.start_time
        ) ON CONFLICT (run, block, status, mode) DO UPDATE SET
            rollouts = rollouts + 1,
            earliest = min(earliest, excluded.earliest),
            latest = max(latest, excluded.latest);
    END;
    -- So fewer indexes have to be written when a status changes.
    DROP INDEX rollout_of_run;
    DROP INDEX rollout_by_start;
    DROP INDEX rollout_by_status_and_start;
    CREATE INDEX rollout_by_start ON rollout (run, start_time);
    CREATE INDEX rollout_by_end ON rollout (run, end_time);
    """,
)
"""Statements that lead from version N, the place in this sequence, to N + 1. A released one is never changed."""


def version_of(connection: sqlite3.Connection) -> int:
    """Return the schema's version; 0 for a database without any."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def is_ours(connection: sqlite3.Connection) -> bool:
    """Whether the database is a store, or empty and can become one."""
    marked: int = connection.execute("PRAGMA application_id").fetchone()[0]
    if marked == APPLICATION_ID:
        return True
    tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return marked == 0 and tables == 0 and version_of(connection) == 0


def migrate(connection: sqlite3.Connection, migrations: Sequence[str] = MIGRATIONS) -> None:
    """Bring the schema to the newest version, in one transaction: as a whole or not at all.

    Args:
        connection: Without an open transaction; its version is not newer than the newest one.
        migrations: Statements that lead from each version to the next.
    """
    if version_of(connection) == len(migrations):
        return
    script = "\n".join(
        (
            "BEGIN IMMEDIATE;",
            *migrations[version_of(connection) :],
            f"PRAGMA application_id = {APPLICATION_ID};",
            f"PRAGMA user_version = {len(migrations)};",
            "COMMIT;",
        )
    )
    try:
        connection.executescript(script)
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
