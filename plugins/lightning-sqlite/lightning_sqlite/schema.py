"""The tables, and how a file is known to have them."""

import sqlite3

APPLICATION_ID = 0x41474C53
"""Marks a file as ours: "AGLS"."""

VERSION = 6
"""Of the tables; every change of them takes the next number. A file of another version is refused."""

_TABLES = """
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
    -- Pages of rollouts, and how many there are: in the order of insertion, of all or of one status, and by times.
    CREATE INDEX rollout_of_run ON rollout (run);
    CREATE INDEX rollout_by_status ON rollout (run, status, rollout, mode);
    CREATE INDEX rollout_by_start ON rollout (run, start_time);
    CREATE INDEX rollout_by_end ON rollout (run, end_time);
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
    -- `attempt` is the attempt's sequence_id. A large body is compressed by zlib.
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
"""


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


def create_tables(connection: sqlite3.Connection) -> None:
    """Make the tables in an empty database, as a whole or not at all."""
    connection.executescript(
        f"BEGIN IMMEDIATE;\n{_TABLES}\n"
        f"PRAGMA application_id = {APPLICATION_ID};\nPRAGMA user_version = {VERSION};\nCOMMIT;"
    )
