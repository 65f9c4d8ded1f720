"""One MongoDB behind two servers: it and they are killed again and again, while many clients work with them."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.chaos.checks import check_clients
from tests.chaos.playground import Playground, Program, free_port, is_served

pytest.importorskip("lightning_mongo", reason="this is about its store")

from lightning_mongo import MongoLightningStore
from lightning_mongo.testing import PACKAGE, Mongod, find_mongod

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(0),  # a test that hangs gives up by itself
    pytest.mark.skipif(find_mongod() is None, reason=f"there is no mongod; {PACKAGE} has one"),
]

SERVERS = 2
CLIENTS = 16
"""Of each server, in one process."""
ROLLOUTS = max(1, int(os.environ.get("AGL_CHAOS_ROLLOUTS", "1000")) // (8 * SERVERS * CLIENTS))
"""That each client enqueues."""
KILLS = 2
"""Of each kind."""
RUN_ID = "run-1"


@pytest.mark.parametrize("replica_set", [False, True], ids=["standalone", "replica set"])
async def test_no_rollout_is_handed_out_twice_and_nothing_acknowledged_is_lost(
    playground: Playground, replica_set: bool
) -> None:
    for name in ("program.py", "clients.py"):
        shutil.copy(Path(__file__).with_name(name), playground.folder)
    ports = [free_port() for _ in range(SERVERS)]
    total = SERVERS * CLIENTS * ROLLOUTS
    with Mongod(replica_set=replica_set) as mongod:

        def serve(number: int) -> Program:
            options = ("--backend", "mongo", "--mongo-uri", mongod.uri, "--run", RUN_ID)
            return playground.agl("store", *options, "--port", ports[number])

        servers = [serve(number) for number in range(SERVERS)]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        working = [playground.start(sys.executable, "clients.py", url, f"p{n}", ROLLOUTS) for n, url in enumerate(urls)]
        moments = sorted(playground.chance.randrange(1, total) for _ in range(2 * KILLS))
        victims = ["mongod", "server"] * KILLS
        playground.chance.shuffle(victims)
        for reports, victim in zip(moments, victims, strict=True):
            playground.wait_for_reports(reports, unless_ended=working[0])
            if victim == "mongod":
                mongod.kill()
                mongod.start()
            else:
                number = playground.chance.randrange(SERVERS)
                playground.kill(servers[number])
                servers[number] = serve(number)
        assert [playground.wait_for(each) for each in working] == [0] * SERVERS
        for server, port in zip(servers, ports, strict=True):
            playground.wait_until(lambda port=port: is_served(port), "the server")  # type: ignore[misc]
            playground.kill(server)
        assert playground.nothing_left() == []

        names = [f"p{process}-{number}" for process in range(SERVERS) for number in range(CLIENTS)]
        store = MongoLightningStore(mongod.uri, run_id=RUN_ID)
        await check_clients(playground, store, names, rollouts=ROLLOUTS)
