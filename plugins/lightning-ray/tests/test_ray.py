"""Runners as actors of a cluster of three nodes, which all are on this machine."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from lightning_http.processes import ProcessesStrategy
from lightning_ray import RayStrategy

from lightning_core import Trainer
from lightning_core.algorithm import algo, run_batch
from lightning_core.errors import ExecutionError
from lightning_core.store import InMemoryLightningStore, LightningStore
from tests.docs.run_page import blocks

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from ray.cluster_utils import Cluster

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PATIENCE_SECONDS = 60.0

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of Ray
    pytest.mark.slow,
    pytest.mark.timeout(300),  # actors take seconds to start on a busy machine
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    sys.path.insert(0, str(HERE))
    quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}
    started = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "include_dashboard": False, "_system_config": quick},
    )
    try:
        started.add_node(num_cpus=4)
        ray.init(address=started.address, logging_level="ERROR", log_to_driver=False)
        yield started
    finally:
        ray.shutdown()
        started.shutdown()
        sys.path.remove(str(HERE))
        del started
        gc.collect()  # of sockets that Ray leaves open


def all_free() -> bool:
    """Whether no actor takes anything of the cluster any more, within some time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def run_agent(name: str, tasks: list[Any], **options: Any) -> list[float]:
    """Return the rewards of an agent of `ray_agents`."""
    import ray_agents  # type: ignore[import-not-found]

    rewards: list[float] = []

    @algo
    async def measure(store: LightningStore) -> None:
        batch = await run_batch(store, tasks, mode="train")
        rewards.extend(batch.rewards)

    Trainer(algorithm=measure, strategy={"name": "ray", **options}).fit(getattr(ray_agents, name))
    return rewards


def test_a_killed_node_costs_leases_and_nothing_else(cluster: Any, tmp_path: Path) -> None:
    import ray_agents

    gate, tasks = tmp_path / "gate", list(range(240))
    lost = cluster.add_node(num_cpus=4)
    rewards: list[float] = []
    store = InMemoryLightningStore()

    @algo
    async def measure(store: LightningStore) -> None:
        batch = asyncio.create_task(run_batch(store, [(task, str(gate)) for task in tasks], mode="train"))
        while len(await store.query_rollouts(status_in=["running", "preparing"])) < 32:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await asyncio.to_thread(cluster.remove_node, lost, allow_graceful=False)
        async with asyncio.timeout(60):  # the actors of a node outlive it for a moment, and could finish
            while not any("fault" in (each.metadata or {}) for each in await all_attempts(store)):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        gate.touch()
        rewards.extend((await batch).rewards)

    strategy = RayStrategy(8, concurrency=4, num_cpus=1)
    result = Trainer(algorithm=measure, strategy=strategy, store=store).fit(ray_agents.wait_for)
    assert rewards == [2.0 * task for task in tasks]
    assert (result.rollouts.succeeded, result.rollouts.failed) == (240, 0)
    attempts = asyncio.run(all_attempts(store))
    assert 0 < sum("fault" in (attempt.metadata or {}) for attempt in attempts) <= 32
    assert all_free()


async def all_attempts(store: LightningStore) -> list[Any]:
    return [each for rollout in await store.query_rollouts() for each in await store.query_attempts(rollout.rollout_id)]


def test_a_killed_actor_is_replaced(cluster: Any, tmp_path: Path) -> None:
    assert run_agent("die_once", [str(tmp_path / "a"), str(tmp_path / "b")], n_runners=2) == [1.0, 1.0]
    with pytest.raises(
        ExecutionError, match=r"1 runner processes have died.*runner 0 \(a Ray actor on node .*\) ended"
    ):
        run_agent("die_once", [str(tmp_path / "c")], max_restarts=0)


def test_what_an_actor_cannot_import_ends_the_run_with_its_trace(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray_agents

    monkeypatch.setattr(ray_agents, "only_here", ray_agents.double, raising=False)
    monkeypatch.setattr(ray_agents.double, "__qualname__", "only_here", raising=False)
    with pytest.raises(ExecutionError, match=r"(?s)a Ray actor on node.*only_here.*Traceback"):
        run_agent("only_here", [1])


async def test_runners_alone_join_a_run_of_another_program(cluster: Any, unused_tcp_port: int) -> None:
    import ray_agents

    rewards: list[float] = []

    @algo
    async def measure(store: LightningStore) -> None:
        rewards.extend((await run_batch(store, [1, 2, 3], mode="train")).rewards)

    port = unused_tcp_port
    strategy = ProcessesStrategy("algorithm", server_port=port)
    leading = asyncio.create_task(Trainer(algorithm=measure, strategy=strategy).fit_async(ray_agents.double))
    while not await is_served(port):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    await Trainer(strategy=RayStrategy(role="runner", server_port=port)).fit_async(ray_agents.double)
    await leading
    assert rewards == [2.0, 4.0, 6.0]


async def is_served(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def test_an_interrupted_program_leaves_no_actor(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import signal, sys\n"
        "import ray_agents\n"
        "from lightning_core import Trainer\n\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "    strategy = {'name': 'ray', 'n_runners': 4, 'address': 'auto'}\n"
        "    print(Trainer(algorithm='baseline', strategy=strategy).fit(ray_agents.hang, sys.argv[1:]).status)\n"
    )
    environment = {**os.environ, "RAY_ADDRESS": cluster.address, "PYTHONPATH": str(HERE)}
    flag = tmp_path / "flag"
    command = [sys.executable, "program.py", flag]
    program = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not flag.exists():
            assert program.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        program.send_signal(signal.SIGINT)
        said, _ = program.communicate(timeout=PATIENCE_SECONDS)
        assert "interrupted" in said
    finally:
        program.kill()
        program.communicate()
    assert all_free()


def test_the_program_of_the_page_runs(cluster: Any, tmp_path: Path) -> None:
    for block in blocks((ROOT / "docs" / "processes.md").read_text(encoding="utf-8")):
        if block.title is not None and block.title.endswith(".py"):
            (tmp_path / block.title).write_text(block.code)
    environment = {**os.environ, "RAY_ADDRESS": cluster.address}
    done = subprocess.run(
        [sys.executable, "on_ray.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
    )
    assert "100 rollouts succeeded" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"address": "ray://head:10001"}, "address is 'ray://head:10001', of Ray Client, which is not supported"),
        ({"role": "algorithm"}, "role is 'algorithm'; the strategy 'processes' has that"),
        ({"resources": {"disk": -1}}, "disk is -1; it is 0 or more"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RayStrategy(**options)
