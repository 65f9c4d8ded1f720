"""ATIF both ways: our attempts as trajectories, and trajectories as rollouts of a run."""

import asyncio
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from atif import Trajectory
from click.testing import CliRunner
from lightning_export import importing
from lightning_export.trajectories import spans_of
from lightning_sqlite import SqliteLightningStore

from lightning_core.adapter import read_model_calls
from lightning_core.adapter.conversation import chat_text
from lightning_core.algorithm.batch import describe_failure
from lightning_core.cli import agl
from lightning_core.types import Span

TASK = {"question": "Rain in Bern?"}
PUBLIC = {
    "schema_version": "ATIF-v1.6",
    "session_id": "s1",
    "agent": {"name": "shell-agent", "version": "2", "model_name": "small"},
    "steps": [
        {"step_id": 1, "source": "system", "message": "You have a shell."},
        {"step_id": 2, "source": "user", "message": "How many files?", "timestamp": "2026-01-31T12:00:00Z"},
        {
            "step_id": 3,
            "timestamp": "2026-01-31T12:00:05Z",
            "source": "agent",
            "message": "I look.",
            "reasoning_content": "ls will do",
            "tool_calls": [{"tool_call_id": "t1", "function_name": "bash", "arguments": {"cmd": "ls | wc -l"}}],
            "observation": {"results": [{"source_call_id": "t1", "content": "3"}]},
            "metrics": {"prompt_tokens": 20, "completion_tokens": 5, "cost_usd": 0.5},
        },
        {"step_id": 4, "source": "agent", "message": "from before", "is_copied_context": True},
        {
            "step_id": 5,
            "source": "agent",
            "message": "Three.",
            "metrics": {"completion_token_ids": [7], "logprobs": [-1]},
        },
    ],
}


def invoke(*arguments: str, status: int = 0) -> str:
    done = CliRunner().invoke(agl, arguments)
    assert done.exit_code == status, done.output
    return done.output


def test_an_attempt_is_a_trajectory_with_each_message_once(make_run: Any) -> None:
    make_run((TASK, "train", "Yes.", {"quality": 0.5, "speed": 1.0}), (TASK, "train", "", {}))
    assert "2 trajectories of 2 rollouts" in invoke("export", "x1", "--to", "atif", "-o", "job")
    [path] = [each for each in Path("job").glob("*/agent/trajectory.json") if '"succeeded"' in each.read_text()]
    found = Trajectory.model_validate_json(path.read_bytes())
    assert found.schema_version == "ATIF-v1.8"
    assert (found.agent.name, found.agent.model_name) == ("forecast", "small")
    assert [(step.source, step.message) for step in found.steps] == [
        ("system", "Be brief."),
        ("user", "Rain in Bern?"),
        ("agent", ""),
        ("agent", "Yes."),
    ]
    called, said = found.steps[2:]
    assert called.tool_calls is not None
    assert called.tool_calls[0].arguments == {"city": "Bern"}
    assert called.observation is not None
    assert called.observation.results[0].content == "wet"
    assert said.reasoning_content == "So it rains."
    assert said.metrics is not None
    assert (said.metrics.prompt_token_ids, said.metrics.completion_token_ids) == ([1, 2, 3, 4, 5], [6])
    assert said.metrics.logprobs == [-1.0]
    result = json.loads((path.parents[1] / "result.json").read_text())
    assert result["verifier_result"] == {"rewards": {"quality": 0.5, "speed": 1.0}}


def test_what_was_exported_comes_back_as_it_was(make_run: Any) -> None:
    make_run((TASK, "val", "Yes.", {"quality": 0.5, "speed": 1.0}))
    invoke("export", "x1", "--to", "atif", "-o", "job")
    [run, *_] = invoke("import", "job").split(":")
    for kind in ("messages", "trajectories"):
        before, after = rows("x1", kind), rows(run, kind)
        assert before == after


def test_each_conversation_of_an_attempt_is_a_trajectory(make_run: Any) -> None:
    make_run((TASK, "val", "Yes.", {"quality": 0.5}))
    coder = [{"role": "system", "content": "You code."}, {"role": "user", "content": "Sort."}]
    told = rows("x1", "messages")[1]["messages"]
    spans = [
        call_span(20.0, coder, "Sorted.", [20], [21]),
        call_span(21.0, [*told, {"role": "user", "content": "And then?"}], "Sun.", [1, 2, 3, 4, 5, 6, 7], [8]),
    ]
    shutil.rmtree("runs/run-x1")
    Path("x1-messages").unlink()
    make_run((TASK, "val", "Yes.", {"quality": 0.5}), more=spans)
    invoke("export", "x1", "--to", "atif", "-o", "job")
    [path] = Path("job").glob("*/agent/trajectory.json")
    found = Trajectory.model_validate_json(path.read_bytes())
    assert [step.message for step in found.steps][2:] == ["", "Yes.", "And then?", "Sun."]
    [other] = found.subagent_trajectories or ()
    assert [step.message for step in other.steps] == ["You code.", "Sort.", "Sorted."]
    used = json.loads((path.parents[1] / "result.json").read_text())["agent_result"]
    metrics = [each.final_metrics for each in (found, other) if each.final_metrics is not None]
    assert used["n_input_tokens"] == sum(each.total_prompt_tokens or 0 for each in metrics) > 0
    assert metrics[1].total_prompt_tokens
    [run, *_] = invoke("import", "job").split(":")
    for kind, column in (("messages", "messages"), ("trajectories", "response_ids")):
        before, after = ([row[column] for row in rows(each, kind)] for each in ("x1", run))
        assert sorted(map(str, after)) == sorted(map(str, before))


def test_a_system_prompt_that_changes_is_told_where_it_does(make_run: Any) -> None:
    """One with the time in it does so at each call."""
    said: list[Any] = [{"role": "system", "content": "It is 0 o'clock."}, {"role": "user", "content": "Rain?"}]
    spans = []
    for hour in range(3):
        said = [{"role": "system", "content": f"It is {hour} o'clock."}, *said[1:]]
        spans.append(call_span(20.0 + hour, said, f"Answer {hour}.", [hour], [7]))
        said += [{"role": "assistant", "content": f"Answer {hour}."}, {"role": "user", "content": "Sure?"}]
    make_run((TASK, "val", None, {"quality": 0.5}), more=spans)
    invoke("export", "x1", "--to", "atif", "-o", "job")
    [path] = Path("job").glob("*/agent/trajectory.json")
    found = Trajectory.model_validate_json(path.read_bytes())
    assert found.subagent_trajectories is None
    assert [(step.source, step.message) for step in found.steps[:6]] == [
        ("system", "It is 0 o'clock."),
        ("user", "Rain?"),
        ("agent", "Answer 0."),
        ("system", "It is 1 o'clock."),
        ("user", "Sure?"),
        ("agent", "Answer 1."),
    ]
    assert len(found.steps) == 9
    assert not any(step.is_copied_context for step in found.steps)
    [run, *_] = invoke("import", "job").split(":")
    assert rows(run, "messages") == rows("x1", "messages")


def test_trajectories_of_others_are_rollouts(make_run: Any, tmp_path: Path) -> None:
    trial = tmp_path / "jobs" / "trial-1"
    (trial / "agent").mkdir(parents=True)
    (trial / "agent" / "trajectory.json").write_text(json.dumps(PUBLIC))
    (trial / "result.json").write_text(json.dumps({"verifier_result": {"rewards": {"reward": 1.0}}}))
    (tmp_path / "more.jsonl").write_text(f"{json.dumps(PUBLIC)}\n\n")
    make_run()
    said = invoke("import", "jobs", "more.jsonl")
    assert ": 2 rollouts" in said
    [first, second, *others] = rows(said.partition(":")[0], "messages")
    assert len(others) == 2
    assert first["reward"] == 1.0
    assert json.loads(first["input"]) == "How many files?"
    assert [message["role"] for message in second["messages"]] == [
        *("system", "user", "assistant", "tool", "assistant", "assistant"),
    ]
    assert second["messages"][3] == {"role": "tool", "content": "3", "tool_call_id": "t1"}
    assert second["messages"][-1]["content"] == "Three."
    assert others[0]["reward"] is None


def test_what_broke_around_an_agent_of_harbor_is_a_fault_and_stays_one(make_run: Any, tmp_path: Path) -> None:
    make_run()
    rate_limit = {"exception_type": "ApiRateLimitError", "exception_message": "429"}
    trials = {
        "1-slow": {"exception_info": {"exception_type": "AgentTimeoutError", "exception_message": "too slow"}},
        "2-exit": {"exception_info": {"exception_type": "NonZeroAgentExitCodeError"}},
        "3-limit": {"exception_info": rate_limit},
        "4-start": {"exception_info": {"exception_type": "EnvironmentStartTimeoutError"}},
        "5-other": {"exception_info": {"exception_type": "SomethingNew", "exception_message": "?"}},
        "6-step": {"step_results": [{}, {"exception_info": rate_limit}], "verifier_result": {"rewards": {"r": 0}}},
        "7-fine": {"step_results": [{}], "verifier_result": {"rewards": {"r": 1}}},
    }
    for name, result in trials.items():
        (tmp_path / "jobs" / name / "agent").mkdir(parents=True)
        (tmp_path / "jobs" / name / "agent" / "trajectory.json").write_text(json.dumps(PUBLIC))
        (tmp_path / "jobs" / name / "result.json").write_text(json.dumps(result))
    run = invoke("import", "jobs").partition(":")[0]
    expected = [
        "AgentTimeoutError: too slow",
        "NonZeroAgentExitCodeError: ",
        "fault: ApiRateLimitError: 429",
        "fault: EnvironmentStartTimeoutError",
        "fault: SomethingNew: ?",
        "fault: ApiRateLimitError: 429",
        None,
    ]
    assert reasons_of(tmp_path, run) == expected
    invoke("export", run, "--to", "atif", "-o", "again")
    assert sorted(map(str, reasons_of(tmp_path, invoke("import", "again").partition(":")[0]))) == sorted(
        map(str, expected)
    )


def reasons_of(root: Path, run: str) -> list[str | None]:
    """Return why each rollout of a run failed; None for one that did not."""

    async def read() -> list[str | None]:
        [file] = (root / "runs" / run).glob("*.db")
        store = SqliteLightningStore(file, run_id=run)
        rollouts = await store.query_rollouts()
        await store.aclose()
        return [describe_failure(each) if each.status == "failed" else None for each in rollouts]

    return asyncio.run(read())


def test_a_subagent_lies_within_its_agent() -> None:
    inner = {**PUBLIC, "trajectory_id": "t2", "agent": {"name": "helper", "version": "1"}}
    spans = list(spans_of(Trajectory.model_validate({**PUBLIC, "subagent_trajectories": [inner]})))
    agent, *calls, helper = spans[:4]
    assert (agent.name, helper.name) == ("invoke_agent shell-agent", "invoke_agent helper")
    assert {span.parent_id for span in (*calls, helper)} == {agent.span_id}
    assert len({span.trace_id for span in spans}) == 1
    assert len(read_model_calls(spans)) == 4


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"schema_version": "ATIF-v1.8", "steps": []}, "bad.json is not an ATIF trajectory: "),
        (
            {**PUBLIC, "schema_version": "ATIF-v1.9"},
            "bad.json has the schema_version 'ATIF-v1.9'; this reads",
        ),
        ({**PUBLIC, "extra": {"lightning_core": {"mode": "foo"}}}, "bad.json is not an ATIF trajectory: "),
        ({**PUBLIC, "extra": {"lightning_core": {"rewards": {"r": math.nan}}}}, "bad.json is not an ATIF trajectory: "),
        ({**PUBLIC, "extra": {"lightning_core": "ours"}}, "bad.json is not an ATIF trajectory: "),
    ],
)
def test_what_is_not_a_trajectory_is_refused_and_no_run_is_left(
    make_run: Any, tmp_path: Path, document: Any, message: str
) -> None:
    make_run()
    (tmp_path / "good.json").write_text(json.dumps(PUBLIC))
    (tmp_path / "bad.json").write_text(json.dumps(document))
    assert message in invoke("import", "good.json", "bad.json", status=2)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["run-x1"]


@pytest.mark.parametrize(
    ("trajectory", "result", "message"),
    [
        (json.dumps(PUBLIC), {"verifier_result": "x"}, "result.json is not the result of a trial: "),
        (json.dumps(PUBLIC), {"verifier_result": {"rewards": [1]}}, "result.json is not the result of a trial: "),
        (json.dumps(PUBLIC), {"verifier_result": {"rewards": {"r": math.nan}}}, "result.json is not the result of a"),
        ("[" * 100_000, None, "1 lines that are not JSON, such as line 1 of t/agent/trajectory.json: "),
        (
            json.dumps({**PUBLIC, "extra": {"lightning_core": {"input": "\ud800"}}}),
            None,
            "trajectory.json cannot be stored: ",
        ),
    ],
    ids=["text", "list", "nan", "deep", "surrogate"],
)
def test_what_is_odd_in_a_trial_is_refused_with_its_file(
    make_run: Any, tmp_path: Path, trajectory: str, result: Any, message: str
) -> None:
    make_run()
    (tmp_path / "t" / "agent").mkdir(parents=True)
    (tmp_path / "t" / "agent" / "trajectory.json").write_text(trajectory)
    if result is not None:
        (tmp_path / "t" / "result.json").write_text(json.dumps(result))
    assert message in invoke("import", "t", status=2)


@pytest.mark.parametrize("name", ["odd.json", "odd.jsonl"])
def test_a_trajectory_of_more_bytes_than_are_read_is_refused_before_all_are(
    make_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    make_run()
    text = json.dumps(PUBLIC)
    monkeypatch.setattr(importing, "MAX_FILE_BYTES", len(text) + 1)
    with open(tmp_path / name, "wb") as file:
        file.truncate(2**40)  # has no blocks on disk
    assert f"{name} has more than {len(text) + 1:,} bytes; split it" in invoke("import", name, status=2)


@pytest.mark.parametrize("name", ["odd.json", "odd.jsonl", "t/trajectory.json"])
def test_a_pipe_is_refused_and_not_waited_for(make_run: Any, tmp_path: Path, name: str) -> None:
    make_run()
    (tmp_path / "t").mkdir()
    os.mkfifo(tmp_path / name)
    assert f"{name} is not a regular file; write what it gives to a file" in invoke(
        "import", name.partition("/")[0], status=2
    )


def call_span(time: float, messages: list[Any], answer: str, prompt: list[int], response: list[int]) -> Span:
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": chat_text(messages),
        "gen_ai.output.messages": chat_text([{"role": "assistant", "content": answer}]),
        "prompt_token_ids": prompt,
        "response_token_ids": response,
    }
    return Span.from_attributes(attributes=attributes, name="a span", start_time=time, end_time=time + 0.5)


def rows(run: str, kind: str) -> list[dict[str, Any]]:
    """Return the rows of a run, without the ids."""
    invoke("export", run, "--to", "jsonl", "--rows", kind, "-o", f"{run}-{kind}")
    found = [json.loads(line) for line in Path(f"{run}-{kind}").read_text().splitlines()]
    return [{name: value for name, value in row.items() if not name.endswith("_id")} for row in found]
