"""A copy of a store's file is whole, also while the store is written to."""

import asyncio
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lightning_sqlite import SqliteLightningStore

from lightning_core.errors import StoreError

BUSY_WRITER = Path(__file__).with_name("busy_writer.py")
OPENER = "import sys; from lightning_sqlite import *; SqliteLightningStore(sys.argv[1])"


def rollouts(path: Path) -> set[str]:
    async def query() -> set[str]:
        store = SqliteLightningStore(path, run_id="run-1")
        found = {rollout.rollout_id for rollout in await store.query_rollouts()}
        assert (await store.statistics())["total_rollouts"] == len(found)
        await store.aclose()
        return found

    return asyncio.run(query())


def test_a_copy_of_an_open_store_has_all_that_was_acknowledged(path: Path, tmp_path: Path) -> None:
    store = SqliteLightningStore(path, run_id="run-1")
    acknowledged = set()
    for number in range(3):
        acknowledged.add(asyncio.run(store.enqueue_rollout("a")).rollout_id)  # in the write-ahead log
        SqliteLightningStore.copy_file(path, tmp_path / f"copy-{number}.db")
        assert rollouts(tmp_path / f"copy-{number}.db") == acknowledged
    # It was not harmed, and is still the only owner, although this process has read its file.
    other = subprocess.run([sys.executable, "-c", OPENER, str(path)], capture_output=True, text=True, check=False)
    assert f"is in use by process {os.getpid()} on" in other.stderr
    asyncio.run(store.aclose())
    assert rollouts(path) == acknowledged
    SqliteLightningStore.copy_file(path, tmp_path / "copy-0.db")  # the log that was beside it is gone
    assert rollouts(tmp_path / "copy-0.db") == acknowledged


def test_copies_of_a_store_that_another_process_writes_to_are_whole(path: Path, tmp_path: Path) -> None:
    told = []
    with subprocess.Popen([sys.executable, str(BUSY_WRITER), str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for number in range(3):
            told += [json.loads(writer.stdout.readline()) for _ in range(200)]
            SqliteLightningStore.copy_file(path, tmp_path / f"copy-{number}.db")
            assert {fact["rollout"] for fact in told if fact["what"] == "enqueued"} <= rollouts(
                tmp_path / f"copy-{number}.db"
            )
        writer.kill()


def test_copies_at_one_time_are_whole(path: Path, tmp_path: Path) -> None:
    store = SqliteLightningStore(path, run_id="run-1")
    ids = {asyncio.run(store.enqueue_rollout("a" * 100_000)).rollout_id for _ in range(50)}
    asyncio.run(store.aclose())
    copies = [tmp_path / f"copy-{number}.db" for number in range(8)]
    with ThreadPoolExecutor(len(copies)) as pool:
        list(pool.map(SqliteLightningStore.copy_file, [path] * len(copies), copies))
    assert [rollouts(copy) for copy in copies] == [ids] * len(copies)


def test_a_log_that_begins_anew_meanwhile_is_copied_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lightning_sqlite import files

    asyncio.run(SqliteLightningStore(path).aclose())
    generations = iter([b"1", b"2", b"2", b"2"])
    monkeypatch.setattr(files, "_generation", lambda *_: next(generations))
    SqliteLightningStore.copy_file(path, tmp_path / "copy.db")
    assert next(generations, None) is None
    endless = iter(range(1000))
    monkeypatch.setattr(files, "_generation", lambda *_: next(endless))
    with pytest.raises(StoreError, match="is written faster than it can be copied"):
        SqliteLightningStore.copy_file(path, tmp_path / "copy.db")


def test_what_cannot_be_copied_is_named(path: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=rf"cannot copy {re.escape(str(path))} to .*No such file"):
        SqliteLightningStore.copy_file(path, tmp_path / "copy.db")
