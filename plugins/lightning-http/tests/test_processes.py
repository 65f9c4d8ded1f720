"""The strategy `processes`, with real processes."""

import asyncio
import multiprocessing
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning_http import LightningStoreClient, LightningStoreServer, child
from lightning_http.processes import ProcessesStrategy
from lightning_http.sending import packed

from lightning_core.agent import rollout
from lightning_core.algorithm import algo, describe_failure, run_batch
from lightning_core.errors import AlgorithmError, ConfigError, ExecutionError, RunEnded
from lightning_core.store import InMemoryLightningStore, LightningStore
from lightning_core.trainer import Trainer
from lightning_core.types import AttemptedRollout, Rollout, Worker

pytestmark = pytest.mark.usefixtures("process_agents", "no_process_left", "clean_environment")

Batch = Callable[[list[Any]], Any]

END_SECONDS = 20.0
"""How long the end of a run may take: far less than what its agents do, and than what it waits for at most."""


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AGL_")]:
        monkeypatch.delenv(name)


def run_agent(name: str, tasks: list[Any], *, store: LightningStore | None = None, **options: Any) -> list[float]:
    """Run an agent of `process_agents` on tasks, and return the rewards."""
    import process_agents

    rewards: list[float] = []

    @algo
    async def algorithm(store: LightningStore) -> None:
        rewards.extend((await run_batch(store, tasks, mode="train")).rewards)

    of_trainer = {each: options.pop(each) for each in ("hooks", "reward", "max_rollouts") if each in options}
    trainer = Trainer(algorithm=algorithm, strategy=ProcessesStrategy(**options), store=store, **of_trainer)
    trainer.fit(getattr(process_agents, name))
    return rewards


async def appears(path: Path) -> None:
    while not os.path.exists(path):  # noqa: ASYNC110, ASYNC240  # another process makes it
        await asyncio.sleep(0.01)


# What it does


def test_rollouts_run_in_other_processes_and_their_spans_come_back():
    store = InMemoryLightningStore()
    assert run_agent("double", list(range(8)), n_runners=2, store=store) == [2.0 * task for task in range(8)]

    async def look() -> tuple[list[Rollout], list[Worker], list[str]]:
        rollouts = list(await store.query_rollouts())
        spans = [span for each in rollouts for span in await store.query_spans(each.rollout_id)]
        said = [str(span.attributes) for span in spans]
        return rollouts, list(await store.query_workers()), said

    rollouts, workers, said = asyncio.run(look())
    assert {each.status for each in rollouts} == {"succeeded"}
    assert not any(f"in {os.getpid()}'" in text for text in said)
    assert sum("in " in text for text in said) == 8
    prefix = re.escape(socket.gethostname())
    for worker in workers:
        assert re.fullmatch(rf"{prefix}-\d+-[0-9a-f]{{8}}-[01]", worker.worker_id)


def test_one_process_runs_several_rollouts_at_once():
    rewards = run_agent("meet", ["a", "b"], concurrency=2)
    assert len(rewards) == 2
    assert rewards[0] == rewards[1] != os.getpid()


def test_runner_processes_have_the_environment_of_their_start(monkeypatch: pytest.MonkeyPatch):
    for value in ("1", "2"):
        monkeypatch.setenv("AGL_TEST_VARIABLE", value)
        assert run_agent("variable", ["a"]) == [float(value)]


def test_agents_are_sent_with_what_they_hold_and_else_by_their_path(agents: Any):
    agents.adding = agents.Adding(5)  # unknown where the module is imported anew
    assert run_agent("adding", [1, 2]) == [6.0, 7.0]
    assert run_agent("locked", [1, 2]) == [101.0, 102.0]


def test_hooks_of_runners_are_called_there_and_those_of_the_run_here(tmp_path: Path, agents: Any):
    assert run_agent("double", [1, 2], hooks=[agents.Tally(str(tmp_path))]) == [2.0, 4.0]
    called = {path.name: path.read_text().split() for path in tmp_path.iterdir()}
    assert called.keys() == {"run_start", "rollout_start", "trace_end", "rollout_end_2.0_2", "rollout_end_4.0_2"}
    assert called["run_start"] == [str(os.getpid())]
    (there,) = set(called["rollout_start"])
    assert there != str(os.getpid())
    assert called["trace_end"] == called["rollout_start"] == [there, there]


def test_a_plugin_that_stays_is_told_of_rollouts_here(tmp_path: Path, agents: Any):
    assert run_agent("double", [1, 2], hooks=[agents.StayingTally(str(tmp_path))]) == [2.0, 4.0]
    called = {path.name: path.read_text().split() for path in tmp_path.iterdir()}
    here = str(os.getpid())
    assert called == {
        "run_start": [here],
        "rollout_start": [here, here],
        "rollout_end_2.0_2": [here],
        "rollout_end_4.0_2": [here],
    }


def test_runners_know_only_their_own_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGL_KEY", "the-algorithm's")
    monkeypatch.setenv("AGL_RUNNER_KEY", "the-runners'")
    assert run_agent("key", ["a"]) == [0.0]


def test_all_runners_at_their_max_rollouts_is_an_error_where_work_is_left():
    with pytest.raises(ExecutionError, match=r"all 1 runners have reached their max_rollouts, and rollout \S+ still"):
        run_agent("double", [1, 2], max_rollouts=1)


# Deaths


def test_dead_runner_is_replaced_and_its_rollout_runs_again_at_once(tmp_path: Path, caplog: Any):
    store = InMemoryLightningStore(lease_seconds=600)  # longer than a test may take: it is not waited for
    assert run_agent("die_once", [str(tmp_path / "flag")], store=store) == [1.0]

    async def attempts() -> list[tuple[str, str]]:
        (rollout,) = await store.query_rollouts()
        found = await store.query_attempts(rollout.rollout_id)
        return [(each.status, str((each.metadata or {}).get("fault"))) for each in found]

    (first, why), (second, _) = asyncio.run(attempts())
    assert (first, second) == ("failed", "succeeded")
    assert re.fullmatch(r"runner 0 \(process \d+\) ended with signal SIGKILL", why)
    assert "lightning.runner_process_replaced runner 0" in caplog.text


def test_death_is_seen_and_last_words_heard_while_a_process_lives_that_the_runner_forked(tmp_path: Path, caplog: Any):
    flag = tmp_path / "flag"
    store = InMemoryLightningStore(lease_seconds=600)
    try:
        assert run_agent("fork_and_die_once", [str(flag)], store=store) == [1.0]  # the fork lives for 600 s
    finally:
        os.kill(int(flag.read_text()), signal.SIGKILL)
    assert f"forked {flag.read_text()}" in caplog.text


def test_tracer_that_needs_lightning_legacy_ends_the_run_at_its_first_rollout(agents: Any):
    trainer = Trainer(algorithm="baseline", strategy=ProcessesStrategy(), tracer=agents.OlderTracer())
    with pytest.raises(ExecutionError, match=r"^runner 0 \(.*: OlderTracer needs lightning-legacy\)$"):
        trainer.fit(agents.double, [1, 2])


def test_a_rollout_that_kills_its_runners_is_given_up_in_the_end():
    store = InMemoryLightningStore()
    assert run_agent("die", ["a"], store=store, max_restarts=5) == []
    (rollout,) = asyncio.run(_rollouts(store))
    assert rollout.status == "failed"
    assert isinstance(rollout, AttemptedRollout)
    assert rollout.attempt.sequence_id == 4
    killed = r"attempt \d on \S+-0: runner 0 \(process \d+\) ended with signal SIGKILL"
    told = f"fault: given up after 4 faults, none of which is the agent's failure: {'; '.join([killed] * 4)}"
    assert re.fullmatch(told, describe_failure(rollout))


async def _rollouts(store: LightningStore) -> list[Rollout]:
    return list(await store.query_rollouts())


# The end


@pytest.mark.parametrize("name", ["hang", "block", "hog"])
def test_runners_end_with_an_algorithm_that_fails(name: str, tmp_path: Path, agents: Any):
    store = InMemoryLightningStore()
    seconds: list[float] = []

    @algo
    async def fail(store: LightningStore) -> None:
        await store.enqueue_rollout(str(tmp_path / "here"))
        await appears(tmp_path / "here")
        seconds.append(time.monotonic())
        raise KeyError("the algorithm's")

    with pytest.raises(KeyError, match="the algorithm's"):
        Trainer(algorithm=fail, strategy=ProcessesStrategy(), store=store).fit(getattr(agents, name))
    assert time.monotonic() - seconds[0] < END_SECONDS
    (rollout,) = asyncio.run(_rollouts(store))
    assert rollout.status == "requeuing"


def test_end_is_not_held_up_by_a_store_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agents: Any
):
    seconds: list[float] = []

    async def release(store: LightningStore, token: str, reason: str) -> None:
        await asyncio.sleep(100)

    @algo
    async def fail(store: LightningStore) -> None:
        for name in ("a", "b"):
            await store.enqueue_rollout(str(tmp_path / name))
        for name in ("a", "b"):
            await appears(tmp_path / name)
        seconds.append(time.monotonic())
        raise KeyError("the algorithm's")

    monkeypatch.setattr("lightning_http.processes.release", release)
    with pytest.raises(KeyError, match="the algorithm's"):
        Trainer(algorithm=fail, strategy=ProcessesStrategy(n_runners=2)).fit(agents.hog)
    assert time.monotonic() - seconds[0] < END_SECONDS


@pytest.mark.parametrize("when", ["they work", "they start"])
async def test_cancelled_run_ends_its_runners(tmp_path: Path, when: str, agents: Any):
    started = asyncio.Event()

    @algo
    async def wait(store: LightningStore) -> None:
        started.set()
        await run_batch(store, [str(tmp_path / "here")], mode="train")

    trainer = Trainer(algorithm=wait, strategy=ProcessesStrategy(n_runners=2))
    run = asyncio.create_task(trainer.fit_async(agents.hang))
    await (appears(tmp_path / "here") if when == "they work" else started.wait())
    cancelled = time.monotonic()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert time.monotonic() - cancelled < END_SECONDS


async def test_end_does_not_wait_for_runners_that_were_stopped_at_their_work(tmp_path: Path, agents: Any):
    ended: list[float] = []

    @algo
    async def leave(store: LightningStore) -> None:
        await store.enqueue_rollout(str(tmp_path / "here"))
        await appears(tmp_path / "here")
        ended.append(time.monotonic())

    await Trainer(algorithm=leave, strategy=ProcessesStrategy(graceful_timeout=60)).fit_async(agents.hang)
    assert time.monotonic() - ended[0] < 30


# From elsewhere


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found: int = free.getsockname()[1]
        return found


@pytest.mark.parametrize("key", ["for-all", ""])
async def test_runners_elsewhere_work_for_an_algorithm_and_end_with_it(
    port: int, monkeypatch: pytest.MonkeyPatch, key: str, agents: Any
):
    monkeypatch.setenv("AGL_KEY", key)
    rewards: list[float] = []
    served = asyncio.Event()

    @algo
    async def algorithm(store: LightningStore) -> None:
        served.set()
        rewards.extend((await run_batch(store, [1, 2, 3], mode="train")).rewards)

    leading = Trainer(algorithm=algorithm, strategy=ProcessesStrategy("algorithm", server_port=port))
    working = Trainer(algorithm=algorithm, strategy=ProcessesStrategy("runner", server_port=port, n_runners=2))
    run = asyncio.create_task(leading.fit_async(agents.double))
    await served.wait()
    joined = asyncio.create_task(working.fit_async(agents.double))
    assert (await run).status == "succeeded"
    assert (await joined).status == "succeeded"
    assert rewards == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("ends", ["succeeds", "fails", "interrupted"])
async def test_runner_elsewhere_that_still_works_hears_of_the_end(
    port: int, monkeypatch: pytest.MonkeyPatch, ends: str
):
    monkeypatch.setenv("AGL_KEY", "for-all")
    go_on = asyncio.Event()
    ended = asyncio.Event()
    claimed: list[AttemptedRollout | None] = []

    @algo
    async def algorithm(store: LightningStore) -> None:
        await store.enqueue_rollout("a")
        async with LightningStoreClient(f"http://127.0.0.1:{port}", retry_seconds=0.1) as client:
            claimed.append(await client.dequeue_rollout("elsewhere", wait_seconds=None))
        ended.set()
        if ends == "fails":
            raise AlgorithmError("it failed")
        if ends == "interrupted":
            await asyncio.Event().wait()

    async def runner() -> str:
        await go_on.wait()
        assert claimed[0] is not None
        async with LightningStoreClient(f"http://127.0.0.1:{port}", retry_seconds=0.1) as client:
            await client.update_attempt(claimed[0].rollout_id, claimed[0].attempt.attempt_id, status="succeeded")
            with pytest.raises(RunEnded, match=r"run \S+ has ended; there is no more work"):
                await client.dequeue_rollout("elsewhere", wait_seconds=None)
        return "heard"

    strategy = ProcessesStrategy("algorithm", server_port=port, graceful_timeout=20)
    run = asyncio.create_task(Trainer(algorithm=algorithm, strategy=strategy).fit_async(_agent))
    elsewhere = asyncio.create_task(runner())
    await ended.wait()
    await asyncio.sleep(0)
    assert not run.done()
    if ends == "interrupted":
        run.cancel()
        await asyncio.sleep(0.1)
    go_on.set()
    assert await elsewhere == "heard"
    if ends == "succeeds":
        assert (await run).status == "succeeded"
    else:
        with pytest.raises(AlgorithmError if ends == "fails" else asyncio.CancelledError):
            await run


async def test_runners_of_a_server_that_is_given_as_the_store_get_the_key_of_runners(agents: Any):
    sent: list[bytes] = []

    @algo
    async def algorithm(store: LightningStore) -> None:
        assert (await run_batch(store, [1], mode="train")).rewards == [2.0]

    def spy(what: str, value: object) -> bytes:
        sent.append(packed(what, value))
        return sent[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lightning_http.pool.packed", spy)
        async with LightningStoreServer(
            InMemoryLightningStore(), key="of-the-algorithm", runner_key="of-runners"
        ) as server:
            trainer = Trainer(algorithm=algorithm, strategy=ProcessesStrategy(), store=server)
            await trainer.fit_async(agents.double)
    assert b"of-the-algorithm" not in b"".join(sent)
    assert b"of-runners" in sent[-1]


async def test_store_that_runners_reach_by_themselves_is_not_served_again(agents: Any):
    rewards: list[float] = []

    @algo
    async def algorithm(store: LightningStore) -> None:
        assert isinstance(store, LightningStoreClient)
        rewards.extend((await run_batch(store, [1, 2], mode="train")).rewards)

    async with (
        LightningStoreServer(InMemoryLightningStore(), key="", runner_key="") as server,
        LightningStoreClient(server.url) as client,
    ):
        await Trainer(algorithm=algorithm, strategy=ProcessesStrategy(), store=client).fit_async(agents.double)
        assert rewards == [2.0, 4.0]
        assert len(await client.query_rollouts()) == 2  # it was not closed


def test_store_that_is_not_served_and_cannot_be_sent_is_an_error():
    class Locked(InMemoryLightningStore): ...

    with pytest.raises(ExecutionError, match=r"the store cannot be sent to another process: .*; define it at the top"):
        run_agent("double", [1], managed_store=False, store=Locked())


# What is wrong


@rollout
def _agent(task: Any) -> float:
    return 0.0


def test_agent_that_cannot_be_sent_is_an_error_before_any_process_starts(monkeypatch: pytest.MonkeyPatch):
    @rollout
    def inner(task: Any) -> float:
        return 0.0

    @algo
    async def algorithm() -> None:
        raise AssertionError("it is not called")

    monkeypatch.setattr(child, "main", None)  # what a process would be started with
    with pytest.raises(ExecutionError) as raised:
        Trainer(algorithm=algorithm, strategy=ProcessesStrategy()).fit(inner)
    assert re.fullmatch(
        r"agent \S+<locals>\.inner cannot be sent to another process: .*inner.*; define it at the top level of a "
        "module that can be imported, and use that one",
        str(raised.value),
    )


def test_plugin_without_hooks_of_runners_need_not_be_sent():
    class Plugin:
        def lightning_run_start(self) -> None: ...

    assert run_agent("double", [1], hooks=[Plugin()]) == [2.0]


def test_what_cannot_be_imported_there_ends_the_run_with_the_reason(
    process_agents: Path, monkeypatch: pytest.MonkeyPatch
):
    module = process_agents / "only_here.py"
    module.write_text("import os, process_agents\n@process_agents.rollout\ndef agent(task): return 1.0\n")
    import only_here  # type: ignore[import-not-found]

    module.write_text("raise RuntimeError('not there')\n")
    os.utime(module, (1, 1))  # so that the compiled one is not taken
    with pytest.raises(ExecutionError, match=r"(?s)runner 0 .*ended with exit code 1.*not there.*Traceback"):
        Trainer(algorithm=algo(lambda: time.sleep(60)), strategy=ProcessesStrategy(max_restarts=0)).fit(only_here.agent)


def test_address_for_other_machines_needs_a_key():
    with pytest.raises(ConfigError, match=r"server_host 0\.0\.0\.0 can be reached from other machines.*set AGL_KEY"):
        run_agent("double", [1], server_host="0.0.0.0")


async def test_role_runner_is_told_of_a_run_that_ended_before_on_a_store_that_outlives_it():
    async with (
        LightningStoreServer(InMemoryLightningStore(), key="", runner_key="") as server,
        LightningStoreClient(server.url) as client,
    ):
        await client.begin_run()
        await client.end_run()
        trainer = Trainer(algorithm="baseline", strategy=ProcessesStrategy("runner", managed_store=False), store=client)
        with pytest.raises(ConfigError, match=r"has ended; there is no more work for this runner; start the algorithm"):
            await trainer.fit_async(_agent)


def test_program_without_a_guard_is_told_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(ExecutionError, match=r"put what starts a run below `if __name__ == '__main__':`"):
        run_agent("double", [1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"role": "boss"}, "role is 'boss': Input should be 'algorithm', 'runner' or 'both'"),
        ({"n_runners": 0}, "n_runners is 0: Input should be greater than or equal to 1"),
        ({"graceful_timeout": -1}, "graceful_timeout is -1: Input should be greater than or equal to 0"),
        ({"server_port": 70000}, "server_port is 70000: Input should be less than or equal to 65535"),
        ({"start_method": "fork"}, "start_method is 'fork': Input should be 'spawn' or 'forkserver'"),
    ],
    ids=str,
)
def test_wrong_argument_is_named(options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        ProcessesStrategy(**options)


def test_only_runners_go_to_the_port_of_the_store_command_unless_they_are_told_another() -> None:
    assert ProcessesStrategy(role="runner").server_port == 4747
    assert ProcessesStrategy(role="runner", server_port=4748).server_port == 4748


def test_variables_say_what_arguments_do_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGL_CURRENT_ROLE", "algorithm")
    monkeypatch.setenv("AGL_SERVER_HOST", "::1")
    monkeypatch.setenv("AGL_SERVER_PORT", "4747")
    monkeypatch.setenv("AGL_MANAGED_STORE", "false")
    strategy = ProcessesStrategy()
    assert (strategy.role, strategy.server_host, strategy.server_port) == ("algorithm", "::1", 4747)
    assert strategy.managed_store is False
    given = ProcessesStrategy("both", "127.0.0.1", 0, managed_store=True)
    assert (given.role, given.server_host, given.server_port, given.managed_store) == ("both", "127.0.0.1", 0, True)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("AGL_CURRENT_ROLE", "boss", "the variable AGL_CURRENT_ROLE is 'boss'"),
        ("AGL_SERVER_PORT", "http", "the variable AGL_SERVER_PORT is 'http': Input should be a valid integer"),
        ("AGL_MANAGED_STORE", "maybe", "the variable AGL_MANAGED_STORE is 'maybe': Input should be a valid boolean"),
    ],
)
def test_wrong_variable_is_named(name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=re.escape(message)):
        ProcessesStrategy()


def test_former_options_are_taken():
    with pytest.warns(DeprecationWarning, match="main_process=.* has no effect.*take the strategy 'local'"):
        ProcessesStrategy(main_process="runner")  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match="allowed_exit_codes"):
        ProcessesStrategy(allowed_exit_codes=(0,))  # type: ignore[call-arg]
