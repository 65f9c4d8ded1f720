"""Which files a store opens, and what it says of the others."""

import asyncio
import os
import re
import socket
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from lightning_sqlite import SqliteLightningStore, StoreInUse, UnusableFile
from lightning_sqlite.schema import APPLICATION_ID, VERSION

from lightning_core.errors import InvalidRequest, StoreError
from lightning_core.types import EnqueueRolloutRequest

pytestmark = pytest.mark.usefixtures("nothing_left_running")

NOBODY = 65534


def python(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script in another process."""
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def make_store_file(path: Path) -> None:
    """Leave a store's file, closed."""

    async def opened_and_closed() -> None:
        await SqliteLightningStore(path).aclose()

    asyncio.run(opened_and_closed())


def refused(path: object, message: str, error: type[StoreError] = UnusableFile) -> None:
    with pytest.raises(error, match=message):
        SqliteLightningStore(path)  # type: ignore[arg-type]


def refused_and_left(path: Path, message: str) -> None:
    """Check that a file is refused and left as it was, with nothing beside it."""
    before = path.read_bytes()
    refused(path, message)
    assert path.read_bytes() == before
    assert [item.name for item in path.parent.iterdir()] == ["store.sqlite"]


@contextmanager
def without_privileges() -> Iterator[None]:
    """Be somebody who may not write everywhere, also where the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


# One owner


def modes_in(folder: Path) -> dict[str, str]:
    return {path.name: oct(path.stat().st_mode & 0o777) for path in folder.iterdir()}


@pytest.mark.skipif(os.name != "posix", reason="files have modes there")
async def test_files_are_their_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = SqliteLightningStore(tmp_path / "store.db")
        await store.enqueue_rollout("task")
    finally:
        os.umask(before)
    modes = modes_in(tmp_path)
    await store.aclose()
    del modes["store.db-owner"]  # which tells no secret
    assert modes == dict.fromkeys(["store.db", "store.db-wal"], "0o600")


@pytest.mark.skipif(os.name != "posix", reason="files have modes there")
async def test_a_file_that_others_can_read_is_its_owners_alone_when_it_is_opened(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await SqliteLightningStore(path).aclose()
    os.chmod(path, 0o644)
    store = SqliteLightningStore(path)
    await store.enqueue_rollout("task")
    modes = modes_in(path.parent)
    assert (modes[path.name], modes[f"{path.name}-wal"]) == ("0o600", "0o600")
    await store.aclose()
    assert f"lightning.store_made_private path={path}: others could use it (mode 0644)" in caplog.text


async def test_a_second_store_of_the_same_process_is_told_who_owns_the_file(path: Path) -> None:
    store = SqliteLightningStore(path)
    owner = rf"is in use by process {os.getpid()} on {re.escape(socket.gethostname())}, since \d{{4}}-.*\+00:00; "
    refused(path, owner + "one process owns a store", StoreInUse)
    # The refused one has not taken the first one's lock away, as a closed descriptor of the same file would.
    other = python("import sys; from lightning_sqlite import *; SqliteLightningStore(sys.argv[1])", path)
    assert f"is in use by process {os.getpid()} on" in other.stderr
    assert (await store.enqueue_rollout("a")).status == "queuing"
    await store.aclose()


def test_another_process_is_named_while_it_lives_and_never_after(path: Path) -> None:
    script = """
        import sys
        from lightning_sqlite import SqliteLightningStore
        store = SqliteLightningStore(sys.argv[1])
        print("open", flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "open\n"
        refused(path, f"is in use by process {owner.pid} on", StoreInUse)
        owner.kill()
    make_store_file(path)


async def test_the_file_can_be_opened_again_as_soon_as_it_is_closed(path: Path) -> None:
    for _ in range(3):
        store = SqliteLightningStore(path)
        await store.aclose()
        await store.aclose()
    assert [item.name for item in path.parent.iterdir()] == ["store.sqlite"]


def test_another_program_is_told_from_a_store(path: Path) -> None:
    make_store_file(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        refused(path, "is in use by another program; ", StoreInUse)


# What is not a store


def test_a_file_that_is_no_database_is_left_as_it_was(path: Path) -> None:
    path.write_text("Dear diary, " * 100)
    refused_and_left(path, r"store\.sqlite is not an SQLite database .*; it was left as it is, take another path")


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_the_database_of_another_program_is_left_as_it_was(path: Path, mode: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute("CREATE TABLE bookmark (url TEXT)")
        connection.commit()
    refused_and_left(path, "is a database of another program, not a store; it was left as it is")


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_another_schema_is_left_as_it_was(path: Path, version: int) -> None:
    make_store_file(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    refused_and_left(path, rf"has schema version {version}, .* knows version {VERSION}; it was left as it is")


def with_a_damaged_page(path: Path) -> None:
    """Leave a store's file of which a page that opening it does not read is damaged."""

    async def fill() -> None:
        store = SqliteLightningStore(path, run_id="run-1")
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input="x" * 1_000) for _ in range(200)])
        await store.aclose()

    asyncio.run(fill())
    content = bytearray(path.read_bytes())
    middle = len(content) // 8192 * 4096
    content[middle : middle + 4096] = b"\xaa" * 4096
    path.write_bytes(content)


def test_one_damaged_page_is_found_when_the_file_is_opened(path: Path) -> None:
    with_a_damaged_page(path)
    refused_and_left(path, r"store\.sqlite is damaged: .*; take a copy that is not, or another path")


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    make_store_file(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)


# Where it cannot be


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    refused(tmp_path, f"{tmp_path} is a folder; name a file in it, such as {tmp_path}/store.sqlite")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    refused(tmp_path / "runs" / "a.sqlite", f"there is no folder {tmp_path}/runs; make it first")
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs users")
@pytest.mark.parametrize("read_only", ["folder", "file"])
def test_what_cannot_be_written_is_refused_and_left_as_it_was(tmp_path: Path, read_only: str) -> None:
    path = tmp_path / "store.sqlite"
    make_store_file(path)
    before = path.read_bytes()
    for parent in (tmp_path, *tmp_path.parents[:3]):
        parent.chmod(0o755)
    tmp_path.chmod(0o555 if read_only == "folder" else 0o777)
    path.chmod(0o444 if read_only == "file" else 0o666)
    with without_privileges():
        refused(path, "cannot be opened: .*; a store writes to its file and its folder")
    tmp_path.chmod(0o755)
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["store.sqlite"]


# Wrong arguments


def test_wrong_options_are_refused_and_leave_no_file(path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"durability is 'paranoid'; it is 'process' .* or 'power'"):
        SqliteLightningStore(path, durability="paranoid")  # type: ignore[arg-type]
    assert not path.exists()
    with pytest.raises(InvalidRequest, match="lease_seconds is 0"):
        SqliteLightningStore(path, lease_seconds=0)
