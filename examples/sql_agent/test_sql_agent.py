"""The SQL agent on real databases, with the played model."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from databases import QUESTIONS, Question, connect, same_rows, schema

HERE = Path(__file__).parent


def run(config: str, *, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "lightning_core", "train", f"sql_agent/{config}"],
        cwd=HERE.parent,
        env={name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
        | {"AGL_RUNS_DIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "PLAYED model" in done.stdout
    return done.stdout


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
        "SELECT LENGTH(ZEROBLOB(2000000))",
    ],
)
def test_a_query_can_only_read_and_for_a_while(query: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    with closing(connect("concerts")) as connection, pytest.raises(sqlite3.Error):
        connection.execute(query.format(file=file)).fetchall()
    assert not file.exists()


def test_the_order_counts_where_the_right_query_sorts() -> None:
    assert not same_rows("pets", "SELECT name FROM student", "SELECT name FROM student ORDER BY age")


def test_a_schema_has_the_tables_and_no_rows() -> None:
    assert schema("pets").count("CREATE TABLE") == 2
    assert "INSERT" not in schema("pets")


def test_apo_finds_a_better_prompt(tmp_path: Path) -> None:
    printed = run("config.yaml", folder=tmp_path)
    assert "reward on validation samples: 0.43 → 1.00" in printed


def test_under_the_policy_writing_is_denied_recorded_and_penalised(tmp_path: Path) -> None:
    assert "20 rollouts succeeded" in run("governed.yaml", folder=tmp_path)
    [report] = tmp_path.rglob("report.html")
    text = report.read_text(encoding="utf-8")
    assert "agent_os.violation" in text
    assert "the database is only read here" in text
    assert "policy_penalty" in text
