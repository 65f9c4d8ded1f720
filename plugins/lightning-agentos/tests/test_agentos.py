"""Tools under a policy of Agent OS: what is denied does not happen, is recorded, and costs."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from lightning_agentos import PolicyReward, PolicyViolationError, governed

from lightning_core import InMemoryLightningStore, Trainer, rollout
from lightning_core.errors import ConfigError
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


async def test_a_violation_can_fail_the_attempt_and_need_not_be_recorded() -> None:
    database = Database()
    tasks = ["SELECT 1", "DROP TABLE pets"]
    _, (status, spans) = await run(make_agents(database)["sync"], tasks, fail_on_violation=True, emit_violations=False)
    assert (status, database.rows) == ("failed", 1)
    assert not any("agent_os.violation" in span.attributes for span in spans)
    assert any("PolicyViolationError" in str(span.attributes.get("exception.type")) for span in spans)


async def test_what_the_agent_returns_is_judged_too_and_another_grader_scores() -> None:
    @rollout
    async def agent(task: str) -> str:
        return task

    def length(result: str) -> float:
        return float(len(result))

    reward = PolicyReward(POLICY, base_reward_fn=length, penalty=2, clean_bonus=0.5)
    (_, clean), (_, denied) = await run(agent, ["cats", "password"], reward=reward)
    assert rewards(clean) == {"final": 4.5, "base": 4.0, "policy_penalty": 0.0}
    assert rewards(denied) == {"final": 6.0, "base": 8.0, "policy_penalty": -2.0}


def test_a_governed_tool_is_itself_elsewhere() -> None:
    @governed
    def shout(text: str, *, mark: str = "!") -> str:
        return text.upper() + mark

    assert shout("no", mark="?") == "NO?"


def test_policies_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder without policies"):
        PolicyReward(tmp_path)
    (tmp_path / "wrong.yaml").write_text("rules: [{name: half}]")
    with pytest.raises(ConfigError, match="cannot be read as a policy of Agent OS"):
        PolicyReward(tmp_path)
