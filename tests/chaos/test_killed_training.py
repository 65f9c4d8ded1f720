"""A training run of which anything is killed at any moment ends as if nothing had been."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.chaos.checks import check_run
from tests.chaos.playground import Playground, Program, free_port, is_served

pytest.importorskip("lightning_sqlite", reason="only what is kept in a file survives a kill")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]  # a test that hangs gives up by itself

ROLLOUTS = int(os.environ.get("AGL_CHAOS_ROLLOUTS", "150"))
CONCURRENCY = 3
"""How many rollouts a runner process works on."""

CONFIG = """
agent: program:agent
algorithm: program:Count
hooks: ["program:Witness"]
train_dataset: tasks.json
n_runners: 4
"""

IN_ONE = f"strategy: {{name: processes, concurrency: {CONCURRENCY}, max_restarts: 1000}}"

APART = "strategy: {{name: processes, role: algorithm}}\nstore: {{name: http, url: 'http://127.0.0.1:{port}'}}"


@pytest.fixture
def playground(playground: Playground) -> Playground:
    shutil.copy(Path(__file__).with_name("program.py"), playground.folder)
    (playground.folder / "tasks.json").write_text(json.dumps(list(range(ROLLOUTS))))
    return playground


def begin_training(playground: Playground, options: str) -> Program:
    (playground.folder / "config.yaml").write_text(f"{CONFIG}{options}\n")
    return playground.agl("train", "config.yaml")


def resume(playground: Playground) -> Program:
    return playground.agl("resume", run_id_of(playground))


def run_id_of(playground: Playground) -> str:
    [folder] = (playground.folder / "runs").iterdir()
    return folder.name


def kills(playground: Playground, **counts: int) -> list[tuple[int, str]]:
    """Choose what is killed, and after how many reports."""
    times = max(1, ROLLOUTS // 500)
    chance = playground.chance
    return sorted((chance.randrange(1, ROLLOUTS), what) for what in counts for _ in range(counts[what] * times))


async def test_run_of_one_command_survives_the_kill_of_any_process(playground: Playground) -> None:
    training = begin_training(playground, IN_ONE)
    for reports, what in kills(playground, runner=3, training=2):
        if not playground.wait_for_reports(reports, unless_ended=training):
            break  # a report may get lost before it is written down
        if what == "training":
            playground.kill(training)
            training = resume(playground)
        else:
            playground.kill_one(playground.runners_of(training))
    assert playground.wait_for(training) == 0
    assert playground.nothing_left() == []
    run_id = run_id_of(playground)
    store_file = playground.folder / "runs" / run_id / "store.db"
    await check_run(playground, store_file, run_id, rollouts=ROLLOUTS)


async def test_run_over_several_commands_survives_the_kill_of_any_process(playground: Playground) -> None:
    port = free_port()
    store_file = playground.folder / "store.db"

    def serve() -> Program:
        return playground.agl("serve", "store", "--backend", "sqlite", "--path", store_file, "--port", port)

    def join() -> Program:
        options = ("--n-runners", 2, "--concurrency", CONCURRENCY, "--max-restarts", 1000)
        return playground.agl("worker", "config.yaml", "--store", f"http://127.0.0.1:{port}", *options)

    server = serve()
    playground.wait_until(lambda: is_served(port), "the server")
    training = begin_training(playground, APART.format(port=port))
    joined = [join(), join()]
    for reports, what in kills(playground, runner=2, server=3, training=2, joined=1):
        if not playground.wait_for_reports(reports, unless_ended=training):
            break  # a report may get lost before it is written down
        if what == "server":
            playground.kill(server)
            server = serve()
        elif what == "training":
            playground.kill(training)
            training = resume(playground)
        elif what == "joined":
            killed = joined.pop(playground.chance.randrange(2))
            playground.kill(killed)
            playground.wait_until(lambda: is_served(port), "the server")
            joined.append(join())
        else:
            playground.kill_one([runner for each in joined for runner in playground.runners_of(each)])
    assert playground.wait_for(training) == 0
    for each in joined:
        each.terminate()
    # 0: the run had ended. 2: the server was killed again before it could be asked for the run, and not back in time.
    # -15: it was told to end while it still began.
    assert {playground.wait_for(each) for each in joined} <= {143, -signal.SIGTERM, 0, 2}
    playground.wait_until(lambda: is_served(port), "the server")
    server.terminate()
    assert playground.wait_for(server) == 0
    assert not is_served(port)
    assert playground.nothing_left() == []
    run_id, *others = playground.served_runs()
    assert set(others[:-1]) <= {run_id}  # the last one may have been started when the run had just ended
    await check_run(playground, store_file, run_id, rollouts=ROLLOUTS)
