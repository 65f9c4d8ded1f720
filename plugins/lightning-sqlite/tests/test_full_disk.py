"""A disk without room: what does not fit is refused, the rest goes on."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lightning_sqlite import SqliteLightningStore

from lightning_core.errors import StoreFull
from lightning_core.types import EnqueueRolloutRequest

pytestmark = pytest.mark.usefixtures("nothing_left_running")

ROOM = 40
LARGE = "x" * 200_000


async def limit(store: SqliteLightningStore, pages: int) -> None:
    """Let the database grow to this many pages, as a disk of that size would."""
    backend: Any = store._backend
    await backend._writer.do(lambda: backend._session.execute(f"PRAGMA max_page_count = {pages}").fetchone())


async def test_what_does_not_fit_is_refused_and_nothing_of_it_is_written(path: Path) -> None:
    store = SqliteLightningStore(path, run_id="run-1")
    await store.enqueue_rollout("small")
    await limit(store, ROOM)
    before = list(await store.query_rollouts()), await store.statistics()
    with pytest.raises(
        StoreFull, match=r"store\.sqlite: there is no room left .*nothing of this request .* agl runs rm --older-"
    ):
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=item) for item in ("small", LARGE)])
    after = list(await store.query_rollouts()), await store.statistics()
    assert [dict(item, uptime=0) for item in (before[1], after[1])] == [dict(before[1], uptime=0)] * 2
    assert after[0] == before[0]
    await store.aclose()
    store = SqliteLightningStore(path, run_id="run-1")
    assert [rollout.input for rollout in await store.query_rollouts()] == ["small"]
    await store.aclose()


async def test_a_request_that_fits_does_not_suffer_from_one_that_does_not(store: SqliteLightningStore) -> None:
    await limit(store, ROOM)
    outcomes = await asyncio.gather(
        *(store.enqueue_rollout(item) for item in ("one", LARGE, "two")), return_exceptions=True
    )
    assert [type(outcome).__name__ for outcome in outcomes] == ["Rollout", "StoreFull", "Rollout"]
    assert [rollout.input for rollout in await store.query_rollouts()] == ["one", "two"]


async def test_the_store_goes_on_when_there_is_room_again(store: SqliteLightningStore) -> None:
    await limit(store, ROOM)
    with pytest.raises(StoreFull):
        await store.enqueue_rollout(LARGE)
    await limit(store, 10 * ROOM)
    assert (await store.enqueue_rollout(LARGE)).status == "queuing"
    claimed = await store.dequeue_rollout()
    assert claimed is not None
    assert claimed.input == LARGE


PROGRAM = """
import asyncio, resource, sys
import aiohttp
from lightning_http import LightningStoreServer
from lightning_sqlite import SqliteLightningStore

async def main():
    store = SqliteLightningStore(sys.argv[1])
    async with LightningStoreServer(store, key="") as server, aiohttp.ClientSession() as session:
        for size in (1, 400_000, 400_000, 1):
            body = {"rollouts": [{"input": "x" * size}]}
            async with session.post(server.url + "/v1/agl/queues/rollouts/enqueue", json=body) as answer:
                told = await answer.json()
                print(answer.status, told["message"] if answer.status == 507 else "")
    await store.aclose()

resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
asyncio.run(main())
"""


def test_a_file_that_may_not_grow_is_a_full_disk(path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, timeout=60, check=True
    )
    first, *refused, last = ran.stdout.splitlines()
    assert (first.strip(), last.strip()) == ("201", "201")
    assert all(each.startswith(f"507 {path}: there is no room left (disk I/O error)") for each in refused)
    assert len(refused) == 2
    assert ran.stderr.count("lightning.store_full") == 1
