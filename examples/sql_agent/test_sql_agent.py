"""The SQL agent on real databases, with the played model."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from databases import QUESTIONS, Question, connect, same_rows, schema
from local_endpoint import ChatRequest, serve
from sql_agent import answer, execution_accuracy

from lightning_core import LLM, InMemoryLightningStore, NamedResources, PromptTemplate, Trainer
from lightning_core.adapter import TracerTraceToTriplet

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: str(question["question"]))
def test_every_right_query_has_rows_and_is_right(question: Question) -> None:
    assert connect(question["database"]).execute(question["gold"]).fetchall()
    assert same_rows(question["database"], question["gold"], question["gold"])


@pytest.mark.parametrize(
    ("query", "is_right"),
    [
        ("SELECT name FROM singer WHERE country LIKE 'Fr%' ORDER BY age", True),
        ("SELECT name, age FROM singer WHERE country = 'France'", False),
        ("SELECT name FROM singers", False),
        ("", False),
        ("DELETE FROM singer", False),
        ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT 'Ada Moreau' FROM n LIMIT 5000", False),
    ],
)
def test_execution_accuracy_compares_rows_and_not_texts(query: str, is_right: bool) -> None:
    assert same_rows("concerts", query, "SELECT name FROM singer WHERE country = 'France'") == is_right


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM singer",
        "WITH old AS (SELECT 1) DELETE FROM singer",
        "REPLACE INTO singer (id) VALUES (1)",
        "CREATE TABLE more (id)",
        "PRAGMA query_only = 0",
        "VACUUM INTO '{file}'",
        "ATTACH '{file}' AS other",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT MAX(i) FROM n",
        "SELECT LENGTH(ZEROBLOB(20000))",
        "SELECT 'a' LIKE PRINTF('%.*c', 500, '%')",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 500000) SELECT COUNT(*) FROM n",
    ],
)
def test_a_query_can_only_read_and_for_a_while(query: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    with closing(connect("concerts")) as connection, pytest.raises(sqlite3.Error):
        connection.execute(query.format(file=file)).fetchall()
    assert not file.exists()


def test_a_right_query_that_fails_is_not_an_answer_that_is_wrong() -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such table: cats"):
        same_rows("pets", "SELECT 1", "SELECT * FROM cats")


def test_rows_beyond_a_thousand_are_not_read() -> None:
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {}) SELECT i FROM n"
    assert same_rows("pets", numbers.format(1000), numbers.format(1000))
    with pytest.raises(sqlite3.DataError, match="more than 1000 rows"):
        same_rows("pets", "SELECT 1", numbers.format(1001))


def test_the_order_counts_where_the_right_query_sorts_and_the_type_of_a_number_does_not() -> None:
    assert same_rows("pets", "SELECT COUNT(*) * 1.0 FROM pet", "SELECT COUNT(*) FROM pet")
    assert not same_rows("pets", "SELECT name FROM student", "SELECT name FROM student ORDER BY age")


def test_a_schema_has_the_tables_and_no_rows() -> None:
    assert schema("pets").count("CREATE TABLE") == 2
    assert "INSERT" not in schema("pets")


@pytest.mark.parametrize(
    ("verdict", "fence", "nodes"),
    [
        ("CORRECT", "```SQLite\n", ["write", "check"]),
        ("INCORRECT", "```sql\n", ["write", "check", "rewrite", "check", "rewrite"]),
    ],
)
async def test_a_query_is_rewritten_until_the_check_agrees_or_the_turns_end(
    verdict: str, fence: str, nodes: list[str]
) -> None:
    def model(request: ChatRequest) -> str:
        if "End with CORRECT" in request.prompt:
            return verdict
        return f"{fence}SELECT COUNT(*) FROM singer -- half: \ud83d\n```"

    store = InMemoryLightningStore()
    async with serve(model) as url:
        prompt = PromptTemplate(template="{schema} {question}")
        resources: NamedResources = {"llm": LLM(endpoint=url, model="small"), "prompt": prompt}
        trainer = Trainer(algorithm="baseline", store=store, reward=execution_accuracy, initial_resources=resources)
        result = await trainer.fit_async(answer, [dict(QUESTIONS[0])])
    assert result.metrics["train_reward"] == 1.0
    [rollout] = await store.query_rollouts()
    spans = list(await store.query_spans(rollout.rollout_id))
    found = [span.attributes.get("agentlightning.operation.name") for span in spans]
    assert [node for node in found if node] == nodes
    trained = TracerTraceToTriplet(agent_match="write").adapt(spans)
    assert len(trained) == len([node for node in nodes if node != "check"])


def test_apo_finds_a_better_prompt(run_python: Callable[..., str]) -> None:
    printed = run_python("-m", "lightning_core", "train", "config.yaml")
    assert "PLAYED model" in printed
    assert "reward on validation samples that the search did not use: 0.50 → 1.00" in printed


def test_under_the_policy_writing_is_denied_recorded_and_penalised(
    run_python: Callable[..., str], tmp_path: Path
) -> None:
    assert "20 rollouts succeeded" in run_python("-m", "lightning_core", "train", "governed.yaml")
    [report] = tmp_path.rglob("report.html")
    text = report.read_text(encoding="utf-8")
    assert "agent_os.violation" in text
    assert "the database is only read here" in text
    assert "policy_penalty" in text
