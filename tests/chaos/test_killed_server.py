"""A store's server that is killed and started again, again and again, while many clients work with it."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.chaos.checks import check_clients
from tests.chaos.playground import Playground, Program, free_port, is_served

lightning_sqlite = pytest.importorskip("lightning_sqlite", reason="only what is kept in a file survives a kill")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]  # a test that hangs gives up by itself

PROCESSES = 2
CLIENTS = 16
"""In each process."""
ROLLOUTS = max(1, int(os.environ.get("AGL_CHAOS_ROLLOUTS", "500")) // (PROCESSES * CLIENTS))
"""That each client enqueues."""
KILLS = 4


async def test_everything_is_done_once_and_nothing_acknowledged_is_lost(playground: Playground) -> None:
    for name in ("program.py", "clients.py"):
        shutil.copy(Path(__file__).with_name(name), playground.folder)
    port, store_file = free_port(), playground.folder / "store.db"
    url, total = f"http://127.0.0.1:{port}", PROCESSES * CLIENTS * ROLLOUTS

    def serve() -> Program:
        return playground.agl("store", "--backend", "sqlite", "--path", store_file, "--port", port)

    server = serve()
    working = [playground.start(sys.executable, "clients.py", url, f"p{n}", ROLLOUTS) for n in range(PROCESSES)]
    for reports in sorted(playground.chance.randrange(1, total) for _ in range(KILLS)):
        playground.wait_for_reports(reports, unless_ended=working[0])
        playground.kill(server)
        server = serve()
    assert [playground.wait_for(each) for each in working] == [0] * PROCESSES
    playground.wait_until(lambda: is_served(port), "the server")
    playground.kill(server)
    assert playground.nothing_left() == []
    assert not is_served(port)

    (run_id,) = set(playground.served_runs())
    names = [f"p{process}-{number}" for process in range(PROCESSES) for number in range(CLIENTS)]
    store = lightning_sqlite.SqliteLightningStore(store_file, run_id=run_id)
    await check_clients(playground, store, names, rollouts=ROLLOUTS)
