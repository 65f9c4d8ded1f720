"""Tools under a policy of Agent OS: what is denied does not happen, is recorded, and costs."""

import asyncio
import queue
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from lightning_agentos import AgentOSRunner, PolicyReward, PolicyViolationError, governed
from lightning_agents import CommandAgent, HttpAgent

from lightning_core import InMemoryLightningStore, LitAgent, OtelTracer, Trainer, rollout
from lightning_core.errors import ConfigError
from lightning_core.tracer import DummyTracer
from lightning_core.types import Span

POLICY = str(Path(__file__).parent / "sql_policy.yaml")


class Database:
    """A real one, with a table of one row."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:", check_same_thread=False)
        self.connection.execute("CREATE TABLE pets AS SELECT 'Ada' AS name")

    @property
    def rows(self) -> int:
        [(count,)] = self.connection.execute("SELECT COUNT(*) FROM pets")
        return int(count)


def make_agents(database: Database) -> dict[str, Any]:
    @governed
    def run_sql(query: str) -> Any:
        return database.connection.execute(query).fetchall()

    @governed
    async def run_sql_async(query: str) -> Any:
        return database.connection.execute(query).fetchall()

    @rollout
    def sync_agent(task: str) -> Any:
        try:
            return run_sql(task)
        except PolicyViolationError as exc:
            return exc.reason

    @rollout
    async def async_agent(task: str) -> Any:
        try:
            return await run_sql_async(query=task)
        except PolicyViolationError as exc:
            return exc.reason

    return {"sync": sync_agent, "async": async_agent}


def in_new_thread(call: Callable[[], Any]) -> Any:
    done = Future[Any]()
    threading.Thread(target=lambda: settle(done, call)).start()
    return done.result(timeout=20)


def in_executor(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(timeout=20)


def in_loops_executor(call: Callable[[], Any]) -> Any:
    async def wait() -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, call)

    return asyncio.run(wait())


def settle(done: "Future[Any]", call: Callable[[], Any]) -> None:
    try:
        done.set_result(call())
    except Exception as exc:
        done.set_exception(exc)


async def run(agent: Any, tasks: list[str], *, reward: Any = None, **options: Any) -> list[tuple[str, list[Span]]]:
    store = InMemoryLightningStore()
    trainer = Trainer(
        algorithm="baseline",
        store=store,
        n_runners=2,
        runner={"name": "agentos", "kernel": POLICY, **options},
        reward=reward or {"name": "agentos", "kernel": POLICY, "penalty": 0.75},
    )
    await trainer.fit_async(agent, train_dataset=tasks)
    return [(each.status, list(await store.query_spans(each.rollout_id))) for each in await store.query_rollouts()]


def rewards(spans: list[Span]) -> dict[str, float]:
    from lightning_core.rewards import find_reward_spans, get_rewards_from_span

    return {each.name: each.value for span in find_reward_spans(spans) for each in get_rewards_from_span(span)}


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_denied_call_does_not_happen_is_recorded_and_costs(kind: str) -> None:
    database = Database()
    clean, denied = await run(make_agents(database)[kind], ["SELECT name FROM pets", "DELETE FROM pets"])

    assert database.rows == 1
    assert (clean[0], denied[0]) == ("succeeded", "succeeded")
    assert rewards(clean[1]) == {"final": 1.0, "base": 1.0, "policy_penalty": 0.0}
    assert rewards(denied[1]) == {"final": 0.25, "base": 1.0, "policy_penalty": -0.75}
    [violation] = [span.attributes for span in denied[1] if "agent_os.violation" in span.attributes]
    assert violation["agent_os.policy"] == "read-only SQL"
    assert violation["agent_os.rule"] == "no-writes"
    assert violation["agent_os.tool"].startswith("run_sql")
    assert violation["agent_os.arguments"] == '{"query": "DELETE FROM pets"}'


@pytest.mark.parametrize("where", [in_new_thread, in_executor, in_loops_executor])
async def test_a_call_in_another_thread_is_denied_and_recorded_too(where: Callable[..., Any]) -> None:
    database = Database()

    @governed
    def change(**options: str) -> Any:
        return database.connection.execute(options["query"])

    @rollout
    def agent(task: str) -> Any:
        try:
            return where(lambda: change(query=task))
        except PolicyViolationError as exc:
            return exc.reason

    [(status, spans)] = await run(agent, ["DELETE FROM pets"])
    assert (status, database.rows) == ("succeeded", 1)
    assert rewards(spans)["final"] == 0.25
    [arguments] = [span.attributes["agent_os.arguments"] for span in spans if "agent_os.tool" in span.attributes]
    assert arguments == '{"query": "DELETE FROM pets"}'


async def test_a_call_of_no_attempt_is_refused_while_the_runner_works() -> None:
    database = Database()
    calls: queue.Queue[tuple[Future[Any], Callable[[], Any]] | None] = queue.Queue()

    def work() -> None:
        while (job := calls.get()) is not None:
            settle(*job)

    worker = threading.Thread(target=work)  # there before the attempt, whose context it does not know
    worker.start()

    @governed
    def run_sql(query: str) -> Any:
        return database.connection.execute(query).fetchall()

    def in_worker(query: str) -> Any:
        done = Future[Any]()
        calls.put((done, lambda: run_sql(query)))
        return done.result(timeout=20)

    @rollout
    def agent(task: str) -> Any:
        with pytest.raises(ConfigError, match=r"run_sql was called under runner 'agentos', but outside of any attempt"):
            in_worker(task)

    try:
        [(status, _)] = await run(agent, ["SELECT 1"])
        assert status == "succeeded"
        assert in_worker("SELECT 2") == [(2,)]
    finally:
        calls.put(None)
        worker.join()


def test_arguments_that_no_rule_could_see_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"takes \*args, which no rule can name"):

        @governed
        def run_all(*queries: str) -> None: ...


async def test_an_argument_given_twice_is_refused() -> None:
    seen = []

    @governed
    def run_sql(query: str, /, **options: str) -> None:
        seen.append(query)

    @rollout
    def agent(task: str) -> None:
        with pytest.raises(ConfigError, match="given \\['query'\\] twice"):
            run_sql(task, query="SELECT 1")

    [(status, _)] = await run(agent, ["DELETE FROM pets"])
    assert (status, seen) == ("succeeded", [])


def test_an_agent_that_nothing_governs_does_not_succeed(tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text(
        "from lightning_core import rollout\n@rollout\ndef agent(task):\n    return 1.0\n"
    )
    (tmp_path / "policy.yaml").write_text("name: allows all\nrules: []\n")

    def train(agent: str) -> str:
        (tmp_path / "config.yaml").write_text(
            f"agent: {agent}\nalgorithm: baseline\ntrain_dataset: [{{q: 1}}]\n"
            "runner: {name: agentos, kernel: policy.yaml}\nreward: {name: agentos}\n"
        )
        command = [sys.executable, "-m", "lightning_core", "train", "config.yaml"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode != 0
        return " ".join((done.stdout + done.stderr).split())

    assert "mark them with @governed" in train("agents:agent")


class RemoteAgent(LitAgent[str]):
    """A third party's."""

    runs_elsewhere = True


@pytest.mark.parametrize(
    "agent",
    [CommandAgent(["true"]), HttpAgent("http://127.0.0.1:1/"), RemoteAgent()],
    ids=lambda each: type(each).__name__,
)
def test_an_agent_that_runs_elsewhere_is_refused(agent: LitAgent[Any]) -> None:
    with pytest.raises(ConfigError, match=f"tools of its own process, and {type(agent).__name__} runs elsewhere"):
        AgentOSRunner(POLICY, tracer=DummyTracer()).init(agent)


async def test_a_violation_can_fail_the_attempt() -> None:
    database = Database()
    tasks = ["SELECT 1", "DROP TABLE pets"]
    _, (status, spans) = await run(make_agents(database)["sync"], tasks, fail_on_violation=True)
    assert (status, database.rows) == ("failed", 1)
    assert sum("agent_os.violation" in span.attributes for span in spans) == 1
    assert any("PolicyViolationError" in str(span.attributes.get("exception.type")) for span in spans)


async def test_what_the_agent_returns_is_judged_too_and_another_grader_scores() -> None:
    @rollout
    async def agent(task: str) -> str:
        return task

    def length(result: str) -> dict[str, float]:
        return {"length": len(result), "a": result.count("a")}

    @governed
    def unused() -> None: ...

    reward = PolicyReward(POLICY, base_reward_fn=length, penalty=2)
    (_, clean), (_, denied) = await run(agent, ["cats", "password"], reward=reward)
    assert rewards(clean) == {"final": 4.0, "base": 4.0, "policy_penalty": 0.0, "a": 1.0}
    assert rewards(denied) == {"final": 6.0, "base": 8.0, "policy_penalty": -2.0, "a": 1.0}


def test_policies_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder without policies"):
        PolicyReward(tmp_path)
    (tmp_path / "wrong.yaml").write_text("rules: [{name: half}]")
    with pytest.raises(ConfigError, match="cannot be read as a policy of Agent OS"):
        PolicyReward(tmp_path)
    for wrong in (5, "", None):
        with pytest.raises(ConfigError, match="kernel is"):
            AgentOSRunner(wrong, tracer=OtelTracer())  # type: ignore[arg-type]


def test_a_path_that_means_two_policies_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("here", "config"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "own_policy.yaml").write_text(f"name: {name}\nrules: []\n")
    monkeypatch.chdir(tmp_path / "here")
    PolicyReward("own_policy.yaml")
    monkeypatch.syspath_prepend(str(tmp_path / "config"))
    with pytest.raises(ConfigError, match=r"may be any of .*give the whole path"):
        PolicyReward("own_policy.yaml")
