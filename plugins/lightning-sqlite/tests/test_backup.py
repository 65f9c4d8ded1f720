"""`agl store backup`: a copy that is whole, also of a store that is written to."""

import asyncio
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result
from lightning_sqlite import SqliteLightningStore

from lightning_core.cli import agl
from lightning_core.types import EnqueueRolloutRequest

BUSY_WRITER = Path(__file__).with_name("busy_writer.py")
OPENER = "import sys; from lightning_sqlite import *; SqliteLightningStore(sys.argv[1])"


def back_up(source: Path | str, target: Path, *options: str) -> Result:
    return CliRunner().invoke(agl, ["store", "backup", str(source), str(target), *options])


def fill(path: Path, count: int = 3) -> None:
    async def enqueue() -> None:
        store = SqliteLightningStore(path, run_id="run-1")
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input="x" * 1000) for _ in range(count)])
        await store.aclose()

    asyncio.run(enqueue())


def rollouts(path: Path) -> set[str]:
    async def query() -> set[str]:
        store = SqliteLightningStore(path, run_id="run-1")
        found = {rollout.rollout_id for rollout in await store.query_rollouts()}
        assert (await store.statistics())["total_rollouts"] == len(found)
        await store.aclose()
        return found

    return asyncio.run(query())


def test_a_backup_is_a_store_that_only_its_owner_can_read(path: Path, tmp_path: Path) -> None:
    fill(path)
    done = back_up(path, tmp_path / "copy.db")
    assert (done.exit_code, done.output) == (0, f"copied {path} to {tmp_path / 'copy.db'}\n")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["copy.db", path.name]
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600
    assert rollouts(tmp_path / "copy.db") == rollouts(path)


def test_a_backup_of_an_open_store_has_all_that_was_acknowledged(path: Path, tmp_path: Path) -> None:
    store = SqliteLightningStore(path, run_id="run-1")
    acknowledged = set()
    for number in range(3):
        acknowledged.add(asyncio.run(store.enqueue_rollout("a")).rollout_id)  # in the write-ahead log
        assert back_up(path, tmp_path / f"copy-{number}.db").exit_code == 0
        assert rollouts(tmp_path / f"copy-{number}.db") == acknowledged
    # It was not harmed, and is still the only owner, although this process has read its file.
    other = subprocess.run([sys.executable, "-c", OPENER, str(path)], capture_output=True, text=True, check=False)
    assert f"is in use by process {os.getpid()} on" in other.stderr
    asyncio.run(store.aclose())
    assert rollouts(path) == acknowledged


def test_backups_of_a_store_that_another_process_writes_to_are_whole(path: Path, tmp_path: Path) -> None:
    told = []
    with subprocess.Popen([sys.executable, str(BUSY_WRITER), str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for number in range(3):
            told += [json.loads(writer.stdout.readline()) for _ in range(200)]
            done = back_up(path, tmp_path / f"copy-{number}.db")
            assert done.exit_code == 0, done.output
            assert {fact["rollout"] for fact in told if fact["what"] == "enqueued"} <= rollouts(
                tmp_path / f"copy-{number}.db"
            )
        writer.kill()


def test_a_run_is_named_by_its_id_or_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "run-1"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    fill(folder / "store.db")
    for number, source in enumerate(("run-1", folder)):
        done = back_up(source, tmp_path / f"copy-{number}.db", "--runs-dir", str(tmp_path / "runs"))
        assert done.exit_code == 0, done.output
        assert len(rollouts(tmp_path / f"copy-{number}.db")) == 3


def test_what_cannot_be_backed_up_is_refused_and_leaves_nothing(path: Path, tmp_path: Path) -> None:
    fill(path, 200)
    there, text, damaged = tmp_path / "there.db", tmp_path / "text.db", tmp_path / "damaged.db"
    there.write_text("an older backup")
    text.write_text("no database" * 1000)
    content = bytearray(path.read_bytes())
    middle = len(content) // 8192 * 4096
    content[middle : middle + 4096] = b"\xaa" * 4096
    damaged.write_bytes(content)
    before = sorted(tmp_path.iterdir())
    for source, target, status, message in (
        (path, there, 2, f"{there} is there already, and a backup overwrites nothing; name a new file"),
        (damaged, tmp_path / "new.db", 1, f"{damaged} is damaged: "),
        (text, tmp_path / "new.db", 1, f"{text} is damaged: file is not a database"),
        (tmp_path / "none", tmp_path / "new.db", 2, "no run '"),
        (path, tmp_path / "none" / "new.db", 1, f"{tmp_path / 'none' / 'new.db'} cannot be opened: there is no folder"),
    ):
        done = back_up(source, target)
        assert done.exit_code == status
        assert done.stderr.startswith(f"Error: {message}")
    assert there.read_text() == "an older backup"
    assert sorted(tmp_path.iterdir()) == before


def test_a_store_that_makes_no_backups_says_so(tmp_path: Path) -> None:
    done = back_up(tmp_path, tmp_path / "copy.db", "--backend", "memory")
    assert done.exit_code == 2
    assert done.stderr == "Error: store 'memory' makes no backups; use the tools of its database\n"
