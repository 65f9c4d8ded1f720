"""`agl import --from`: files as products export them; and `agl tasks`, which makes samples of a run."""

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from lightning_export.attempts import Ended, Wanted, read_ended
from lightning_export.trajectories import rewards_of

from lightning_core.adapter.calls import agent_calls
from lightning_core.agent.environments import split_of
from lightning_core.cli import agl
from lightning_core.runs.folder import RunFolder, runs_in

RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGL_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def imported(source: str, *names: str) -> tuple[Result, RunFolder]:
    files = [name if name.startswith("/") else str(RECORDED / name) for name in names]
    done = CliRunner().invoke(agl, ["import", "--from", source, *files])
    assert done.exit_code == 0, done.output
    [run] = runs_in(Path("runs").absolute())
    return done, run


def rollouts(run: RunFolder) -> list[Ended]:
    async def read() -> list[Ended]:
        return [each async for each in read_ended(run, Wanted(statuses=("succeeded", "failed")), lambda each: each)]

    return asyncio.run(read())


QUESTION = "Can I return opened headphones?"


@pytest.mark.parametrize(
    ("source", "files", "task", "answer", "rewards"),
    [
        (
            "langfuse",
            ["langfuse-trace.json"],
            {"question": QUESTION},
            "No, opened headphones cannot be returned.",
            {"correct": 0.0},
        ),
        ("phoenix", ["phoenix-spans.json", "phoenix-annotations.json"], QUESTION, "No.", {"correctness": 1.0}),
        ("phoenix", ["phoenix-dataframe.json"], QUESTION, "No.", {}),
        ("mlflow", ["mlflow-traces.jsonl"], {"question": QUESTION}, "No.", {"correctness": 0.0}),
        ("mlflow", ["mlflow-frame.jsonl"], {"question": QUESTION}, "No.", {"correctness": 0.0}),
        ("otlp", ["otlp.jsonl"], QUESTION, "No.", {"correctness": 0.25}),
    ],
)
def test_a_trace_is_a_rollout_with_its_task_its_call_and_its_scores(
    source: str, files: list[str], task: Any, answer: str, rewards: dict[str, float]
) -> None:
    done, run = imported(source, *files)

    [ended] = [each for each in rollouts(run) if each.rollout.input == task]

    assert ended.rollout.status == "succeeded"
    [call] = agent_calls(ended.spans)
    assert call.answers[0]["content"] == answer
    assert call.messages[-1] == {"role": "user", "content": task if isinstance(task, str) else task["question"]}
    assert str(call.model).startswith("gpt-4.1-mini")
    assert rewards_of(ended) == rewards
    assert "not for reinforcement learning, which needs token ids" in done.output


def test_spans_keep_their_tree_and_the_usage() -> None:
    _, run = imported("mlflow", "mlflow-traces.jsonl")

    [ended] = [each for each in rollouts(run) if each.rollout.input == {"question": "Where is order 7?"}]

    root, first, tool, second, _ = ended.spans
    assert (root.parent_id, {each.parent_id for each in (first, tool, second)}) == (None, {root.span_id})
    assert first.attributes["gen_ai.usage.input_tokens"] == 14
    assert 0 < (first.end_time or 0) - (first.start_time or 0) < 1
    assert [len(call.messages) for call in agent_calls(ended.spans)] == [1, 3]
    assert tool.attributes["gen_ai.tool.name"] == "look_up"


@pytest.mark.parametrize(("source", "file"), [("mlflow", "mlflow-traces.jsonl"), ("phoenix", "phoenix-spans.json")])
def test_a_rate_limit_that_ended_a_trace_is_a_fault(source: str, file: str) -> None:
    _, run = imported(source, file)

    [failed] = [each.rollout.attempt for each in rollouts(run) if each.rollout.status == "failed"]

    assert "RateLimitError" in (failed.metadata or {})["fault"]


def test_errors_of_the_infrastructure_are_faults_and_what_cannot_be_read_is_counted() -> None:
    done, run = imported("langfuse", "langfuse-observations.jsonl", "langfuse-scores.jsonl")

    found = {str(ended.rollout.input["question"]): ended for ended in rollouts(run)}

    assert rewards_of(found["Where is my order?"]) == {"correct": 1.0}
    fault = found["Do you ship to Norway?"].rollout.attempt
    assert fault.status == "failed"
    assert (fault.metadata or {})["fault"].startswith("RateLimitError")
    assert (found["Cancel order 12."].rollout.attempt.metadata or {})["failure"] == {"message": "KeyError: 'order_id'"}
    assert "left out: 1 lines that are not JSON; 1 scores of other traces, such as line 5 of " in done.output


@pytest.mark.parametrize(
    ("source", "file", "hint"),
    [
        ("langfuse", "mlflow-traces.jsonl", "an export of mlflow; take --from mlflow"),
        ("mlflow", "otlp.jsonl", "an export of otlp; take --from otlp"),
        ("otlp", "phoenix-spans.json", "an export of phoenix; take --from phoenix"),
        ("phoenix", "langfuse-trace.json", "an export of langfuse; take --from langfuse"),
        ("atif", "langfuse-trace.json", "an export of langfuse; take --from langfuse"),
        ("langfuse", "", "is a folder; name the files of an export in it"),
        ("phoenix", "phoenix-traces.json", "a span without attributes; export /v1/projects/PROJECT/spans"),
    ],
)
def test_a_file_of_another_source_says_what_it_looks_like_and_leaves_no_run(source: str, file: str, hint: str) -> None:
    done = CliRunner().invoke(agl, ["import", "--from", source, str(RECORDED / file)])

    assert done.exit_code == 2
    assert hint in done.output
    assert not list(Path("runs").glob("*"))


def test_a_score_that_is_not_finite_and_a_trace_that_cannot_be_read_are_left_out(folder: Path) -> None:
    whole: dict[str, Any] = {"id": "1", "timestamp": "2026-11-20T09:15:02Z", "input": "a", "output": "b"}
    whole["scores"] = [{"name": "good", "value": float("nan")}, {"name": "fair", "value": 1}]
    broken = {"id": "2", "timestamp": "2026-11-20T09:15:02Z", "input": "c", "observations": [{"type": "SPAN"}]}
    (folder / "traces.jsonl").write_text(f"{json.dumps(whole)}\n{json.dumps(broken)}\n")

    done, run = imported("langfuse", str(folder / "traces.jsonl"))

    assert [(each.rollout.input, rewards_of(each)) for each in rollouts(run)] == [("a", {"fair": 1.0})]
    assert "1 records that cannot be read; 1 scores without a number" in done.output


def test_a_compressed_file_is_read_and_one_that_is_cut_off_is_refused(folder: Path) -> None:
    packed = gzip.compress((RECORDED / "mlflow-traces.jsonl").read_bytes())
    (folder / "cut.jsonl.gz").write_bytes(packed[:-9])
    done = CliRunner().invoke(agl, ["import", "--from", "mlflow", "cut.jsonl.gz"])
    assert done.exit_code == 2
    assert "cut.jsonl.gz cannot be unpacked" in done.output
    assert runs_in(Path("runs").absolute()) == []
    (folder / "traces.jsonl.gz").write_bytes(packed)
    _, run = imported("mlflow", str(folder / "traces.jsonl.gz"))
    assert {"question": QUESTION} in [each.rollout.input for each in rollouts(run)]


def test_an_imported_run_is_exported_and_shown_like_any_other(folder: Path) -> None:
    _, run = imported("langfuse", "langfuse-trace.json")

    for arguments in (["export", run.run_id, "--to", "jsonl", "-o", "rows.jsonl"], ["show", run.run_id]):
        done = CliRunner().invoke(agl, arguments)
        assert done.exit_code == 0, done.output
    [row] = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    assert row["messages"][-1]["content"] == "No, opened headphones cannot be returned."


def many(folder: Path, name: str, numbers: range) -> Path:
    """Write an export of Langfuse with so many traces; each of them is there twice."""
    path = folder / name
    with path.open("w") as file:
        for number in [*numbers, *numbers]:
            row = {
                "id": f"{number}-{file.tell()}",
                "timestamp": "2026-11-20T09:15:02Z",
                "input": {"question": f"What is {number} + 1?"},
                "output": str(number),
                "observations": [],
                "scores": [{"name": "correct", "value": number % 2}],
            }
            file.write(json.dumps(row) + "\n")
    return path


def write_tasks(run: RunFolder, *arguments: str) -> Result:
    return CliRunner().invoke(agl, ["tasks", run.run_id, *arguments])


def samples(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_tasks_are_the_inputs_of_a_run_once_with_what_was_recorded(folder: Path) -> None:
    _, run = imported("langfuse", str(many(folder, "export.jsonl", range(40))))

    for split in ("train", "val", "test"):
        assert write_tasks(run, "-o", f"{split}.jsonl").exit_code == 0
    done = write_tasks(run, "--where", "correct<0.5", "-o", "wrong.jsonl")

    every = [each["input"]["question"] for split in ("train", "val", "test") for each in samples(f"{split}.jsonl")]
    assert sorted(every) == sorted(f"What is {number} + 1?" for number in range(40))
    assert done.output == "wrong.jsonl: 20 samples of 80 rollouts\n"
    assert {
        "input": {"question": "What is 4 + 1?"},
        "answer_given": "4",
        "rewards": {"reward": 0.0, "correct": 0.0},
    } in (samples("wrong.jsonl"))


def test_a_later_import_moves_no_sample_to_another_split(folder: Path) -> None:
    _, first = imported("langfuse", str(many(folder, "export.jsonl", range(30))))
    write_tasks(first, "-o", "test.jsonl")
    before = samples("test.jsonl")
    CliRunner().invoke(agl, ["import", "--from", "langfuse", str(many(folder, "later.jsonl", range(60)))])
    [later] = [run for run in runs_in(Path("runs").absolute()) if run.run_id != first.run_id]

    write_tasks(later, "-o", "train.jsonl")

    assert before
    assert not {json.dumps(each["input"]) for each in before} & {json.dumps(s["input"]) for s in samples("train.jsonl")}
    assert {split_of(each["input"]) for each in samples("train.jsonl")} == {"train"}


def test_scores_of_a_table_are_rewards(folder: Path) -> None:
    row = {"id": "t1", "timestamp": "2026-11-20T09:15:02Z", "input": "Hi", "output": "Hello", "tags": ["prod"]}
    row |= {"good": [0.5], "tone": ["curt"], "safe": None}
    (folder / "table.json").write_text(json.dumps([row]))

    _, run = imported("langfuse", str(folder / "table.json"))

    assert [rewards_of(ended) for ended in rollouts(run)] == [{"good": 0.5}]


def test_what_people_said_is_right_comes_with_the_sample() -> None:
    _, run = imported("mlflow", "mlflow-traces.jsonl")

    assert write_tasks(run, "-o", "new/all.jsonl").exit_code == 0

    [sample] = [each for each in samples("new/all.jsonl") if each["input"] == {"question": QUESTION}]
    assert sample["expected"] == "Yes, within 30 days."


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("correct is bad", "--where is 'correct is bad'; it is a reward's name, a comparison and a number"),
        ("correct>1", "is left of its 2 rollouts, whose rewards are correct, reward; loosen --where"),
    ],
)
def test_a_condition_that_cannot_be_read_or_leaves_nothing_is_refused(where: str, said: str, folder: Path) -> None:
    _, run = imported("langfuse", str(many(folder, "export.jsonl", range(1))))

    done = write_tasks(run, "--where", where, "-o", "none.jsonl")

    assert done.exit_code == 2
    assert said in done.output
    assert not Path("none.jsonl").exists()
