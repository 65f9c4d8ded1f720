"""The report of a run, as a file and in a browser, and runs in the terminal."""

import asyncio
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lightning_viewer.collect import collect
from lightning_viewer.report import redacted, render
from lightning_viewer.terminal import print_rollout
from live_stores import converse
from rich.console import Console
from runs import KEY, TASKS, Improves, agent

from lightning_core import Trainer, emit_message, rollout
from lightning_core.runs import RunFolder
from lightning_core.runs.manifest import describe_origin
from lightning_core.store import InMemoryLightningStore
from lightning_core.types import Span, SpanCoreFields


@rollout
async def agent_of_length(task: str) -> float:
    return float(len(task))


@rollout
async def agent_of_fields(task: dict[str, str]) -> float:
    return float(task["api_key"] == "tidal-wharf-91")


def agl(*arguments: object, works: bool = True) -> str:
    """What a command that works says, or one that does not says is wrong."""
    command = [sys.executable, "-m", "lightning_core", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode == 0) == works, done.stderr
    return done.stdout if works else done.stderr


def embedded(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_a_run_ends_with_a_report_that_only_its_owner_reads(folder: RunFolder) -> None:
    path = folder.path / "report.html"
    assert path.stat().st_mode & 0o077 == 0
    assert [each.name for each in folder.path.iterdir() if each.name.startswith(".")] == []
    data = embedded(path.read_text())
    assert data["run"]["id"] == folder.run_id
    assert data["run"]["outcome"] == "succeeded"
    assert (data["counts"]["succeeded"], data["counts"]["failed"]) == (9, 3)
    [failure] = data["failures"]
    assert (failure["count"], failure["cause"]) == (3, "ValueError: cannot add 17 apples")
    curve = [report["metrics"]["val_reward"] for report in data["curve"]][:3]
    assert curve == [pytest.approx(1 / 3), 1.0, pytest.approx(1 / 3)]
    # Equal resources are one version, with the rewards of all their rollouts.
    first, best = data["resources"]
    assert (first["is_best"], best["is_best"]) == (False, True)
    [measured] = first["rewards"]
    assert (measured["mode"], measured["n"], measured["lost"], measured["mean"]) == ("val", 3, 1, pytest.approx(1 / 3))
    assert [row["resources"] for row in data["rollouts"]].count(0) == 8
    assert len(data["inputs"]) == len(TASKS)
    # Every rollout of a small run has its trace.
    assert data["traces"].keys() == {row["id"] for row in data["rollouts"]}
    assert data["left_out"] == {"traces": 0, "rollouts": 0}
    row = next(row for row in data["rollouts"] if row["failure"])
    raised = [each for span in data["traces"][row["id"]]["spans"] for each in span["raised"]]
    assert raised[0]["type"] == "ValueError"


def test_what_agents_say_is_text_and_secrets_are_hidden(folder: RunFolder) -> None:
    text = (folder.path / "report.html").read_text()
    assert "<img" not in text
    assert text.count("</script>") == 2
    assert KEY not in text
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert "unsafe" not in policy[1]
    assert "default-src 'none'" in policy[1]


def test_a_title_or_a_number_that_json_does_not_have_leaves_the_report_whole(folder: RunFolder) -> None:
    data = embedded((folder.path / "report.html").read_text())
    hostile = {"id": "<b>", "algorithm": '"><script>'}
    page = render({**data, "run": hostile, "inputs": [{"x": float("nan")}, float("inf")]})
    assert "<title>&lt;b&gt; · &quot;&gt;&lt;script&gt;</title>" in page
    assert "NaN" not in page.partition('id="data">')[2].partition("</script>")[0]
    assert embedded(page)["inputs"] == [{"x": None}, None]


async def test_one_huge_trace_does_not_displace_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_viewer.collect.MAX_TRACE_CHARACTERS", 5_000)

    @rollout
    async def talks(task: int) -> float:
        for _ in range(20 if task == 0 else 1):
            emit_message("x" * 500)
        return float(task)

    trainer = Trainer(algorithm="baseline", run_dir=tmp_path)
    await trainer.fit_async(talks, [0, 1, 2])
    assert trainer.recording is not None
    data = await collect(trainer.recording.folder, trainer.store)
    await trainer.store.aclose()
    assert [row["reward"] for row in data["rollouts"] if row["id"] not in data["traces"]] == [0.0]


async def test_a_report_without_room_for_all_rollouts_has_the_sums_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_viewer.collect.MAX_ROW_CHARACTERS", 2_000)
    store = InMemoryLightningStore(run_id="run-1")
    trainer = Trainer(algorithm=Improves(), n_runners=2, store=store, run_dir=tmp_path)
    await trainer.fit_async(agent, val_dataset=TASKS)
    assert trainer.recording is not None
    data = await collect(trainer.recording.folder, store)
    await store.aclose()
    shown = len(data["rollouts"])
    assert 0 < shown < 12
    assert data["left_out"]["rollouts"] == 12 - shown
    assert {row["failure"] for row in data["rollouts"]} >= {"ValueError: cannot add 17 apples"}
    assert {row["sample"] for row in data["rollouts"]} == set(range(len(data["inputs"])))
    assert (data["counts"]["succeeded"], data["counts"]["failed"]) == (9, 3)
    assert [each["rewards"][0]["n"] for each in data["resources"]] == [3, 3]
    compared = data["version_changes"]["0-1"]
    assert (compared["better"], compared["worse"], compared["same"]) == (2, 0, 1)


async def test_a_long_sample_is_whole_where_its_trace_is_and_a_huge_one_is_cut(tmp_path: Path) -> None:
    store = InMemoryLightningStore()
    trainer = Trainer(algorithm="baseline", store=store, run_dir=tmp_path)
    await trainer.fit_async(agent_of_length, ["x" * 5_000, "y", "z" * 1_000_000])
    assert trainer.recording is not None
    data = await collect(trainer.recording.folder, store)
    short = await collect(trainer.recording.folder, store, max_traces=0)
    await store.aclose()
    *others, huge = sorted(data["inputs"], key=len)
    assert list(map(len, others)) == [1, 5_000]
    assert 1_000 < len(huge) < 20_000
    assert huge.endswith("…")
    assert max(map(len, short["inputs"])) < 1_000


@pytest.mark.parametrize("error", [ValueError("a span that cannot be read"), OSError("no space left"), None])
def test_a_run_whose_report_cannot_be_written_succeeds_and_the_log_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception | None
) -> None:
    async def refuse(*_: object) -> None:
        if error is not None:
            raise error
        await asyncio.Event().wait()

    monkeypatch.setattr("lightning_viewer.collect.collect", refuse)
    monkeypatch.setattr("lightning_viewer.report.MAX_SECONDS", 30.0 if error else 0.1)
    result = Trainer(algorithm="baseline", run_dir=tmp_path).fit(agent_of_length, ["x"])
    assert (result.status, result.report, result.failed_hooks) == ("succeeded", None, [])
    [record] = [each for each in caplog.records if "report_not_written" in each.message]
    assert str(error or "its store took more than 0.1 s; write it with: agl report") in caplog.text
    assert (record.exc_info is not None) == isinstance(error, ValueError)  # only what is not expected has a traceback


def test_fields_of_a_sample_that_are_named_as_a_key_are_hidden(tmp_path: Path) -> None:
    config = {"agent": "a:b", "train_dataset": [{"api_key": "tidal-wharf-91", "password": "marble-canoe-28", "n": 1}]}
    trainer = Trainer(algorithm="baseline", run_dir=tmp_path)
    trainer.origin = describe_origin(config=config)
    result = trainer.fit(agent_of_fields, [{"api_key": "tidal-wharf-91", "word": "blue"}])
    assert result.report is not None
    text = result.report.read_text()
    assert "tidal-wharf-91" not in text
    data = embedded(text)
    assert data["run"]["config"]["train_dataset"] == [{"api_key": "***", "password": "***", "n": 1}]
    assert data["inputs"] == [{"api_key": "***", "word": "blue"}]
    said = agl("show", result.run_id, "--runs-dir", tmp_path)
    assert '{"api_key": "***", "word": "blue"}' in said


def test_report_can_leave_out_what_was_said(folder: RunFolder, tmp_path: Path) -> None:
    target = tmp_path / "shared.html"
    said = agl("report", folder.run_id[:12], "--runs-dir", folder.path.parent, "--no-traces", "-o", target)
    assert said.strip() == str(target)
    data = embedded(target.read_text())
    assert data["traces"] == {}
    assert data["left_out"] == {"traces": 12, "rollouts": 0}


def test_a_redacted_report_has_numbers_and_names_but_no_texts(folder: RunFolder, tmp_path: Path) -> None:
    target = tmp_path / "shared.html"
    agl("report", folder.run_id, "--runs-dir", folder.path.parent, "--redact", "-o", target)
    whole, data = embedded((folder.path / "report.html").read_text()), embedded(target.read_text())
    assert data["is_redacted"] is True
    text = json.dumps(data)
    for said in ("easy", "hard", "owned", "asked", "cannot add", "think", "{task}", "question"):
        assert said in json.dumps(whole)
        assert said not in text
    assert data["curve"] == whole["curve"]
    assert data["counts"] == whole["counts"]
    told = ("id", "reward", "status", "seconds", "resources", "mode")
    assert [[row[key] for key in told] for row in data["rollouts"]] == [
        [row[key] for key in told] for row in whole["rollouts"]
    ]
    for rollout_id, trace in data["traces"].items():
        for span, original in zip(trace["spans"], whole["traces"][rollout_id]["spans"], strict=True):
            assert (span["name"], span["rewards"]) == (original["name"], original["rewards"])
            assert span["attributes"].keys() == original["attributes"].keys()
    assert data["resources"][0]["texts"] == {"main_prompt": "[12 characters]"}
    raised = {each["type"] for trace in data["traces"].values() for span in trace["spans"] for each in span["raised"]}
    assert raised == {"ValueError"}


def test_redaction_replaces_what_a_model_was_asked_and_said() -> None:
    call = {"model": "gpt-4.1", "error": "secret", "tokens": {"prompt": 1, "ids": [7]}, "output_tokens": 4}
    call["messages"] = [{"role": "user", "text": "secret", "tools": [{"name": "add", "arguments": "secret"}]}]
    span = {"name": "agent", "attributes": {"note": "secret", "size": 3, "gen_ai.request.model": "gpt-4.1"}}
    config = {"name": "secret", "n": 2}
    data = {"run": {"id": "run-1", "config": config, "error": "secret"}, "inputs": [{"name": "secret"}, 41]}
    trace = {"calls": [call], "spans": [span]}
    found = redacted({**data, "traces": {"ro-1": trace}, "failures": [{"task": {"id": "secret"}, "example": "ro-1"}]})
    assert "secret" not in json.dumps(found)
    assert found["run"] == {"id": "run-1", "config": {"name": "[6 characters]", "n": 2}, "error": "[6 characters]"}
    assert found["inputs"] == ["[18 characters]", "[2 characters]"]
    [told] = found["traces"]["ro-1"]["calls"]
    assert (told["model"], told["output_tokens"], told["tokens"]) == ("gpt-4.1", 4, None)
    [shown] = found["traces"]["ro-1"]["spans"]
    assert shown["attributes"] == {"note": "[6 characters]", "size": 3, "gen_ai.request.model": "gpt-4.1"}
    assert found["failures"][0]["example"] == "ro-1"


def test_show_lists_rollouts_without_a_reward_first_and_then_the_worst(folder: RunFolder) -> None:
    said = agl("show", "--runs-dir", folder.path.parent, "--limit", "4")
    lines = said.partition("rollouts, the worst first\n")[2].splitlines()
    assert all("ValueError: cannot add 17 apples" in line for line in lines[:3])
    assert "  0.00  " in lines[3]
    assert lines[4] == "  and 8 more: --limit"
    name = folder.run_id
    assert lines[5] == f"what a better version changed: agl compare {name}:first {name}:best"


def test_show_prints_a_trace(folder: RunFolder) -> None:
    data = embedded((folder.path / "report.html").read_text())
    row = next(row for row in data["rollouts"] if data["inputs"][row["sample"]]["question"] == "easy")
    said = agl("show", folder.run_id, row["id"][:10], "--full", "--runs-dir", folder.path.parent)
    assert "asked easy with" in said
    assert KEY not in said
    assert said.rstrip().endswith("succeeded, reward 1")
    said = agl("show", folder.run_id, "ro-none", "--runs-dir", folder.path.parent, works=False)
    assert "no rollout whose id begins with 'ro-none'; list them with: agl show" in said


async def test_show_says_how_many_tokens_of_a_rollout_are_trained_on() -> None:
    store = InMemoryLightningStore()
    rollout_id = await converse(store, [([1, 2, 3], [4, 5]), ([1, 2, 3, 4, 5, 6], [7])])
    file = io.StringIO()
    await print_rollout(Console(file=file, width=200), store, rollout_id)
    await store.aclose()
    assert "1 training row: 3 tokens trained on, 4 masked\nsucceeded, reward 1" in file.getvalue()


async def test_a_broken_reward_is_shown_as_such(tmp_path: Path) -> None:
    trainer = Trainer(algorithm="baseline", run_dir=tmp_path)
    await trainer.fit_async(agent_of_length, ["x", "xx"])
    store = trainer.store
    broken = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": "high"}
    of = await store.start_rollout("xxx")
    ids = {"rollout_id": of.rollout_id, "attempt_id": of.attempt.attempt_id}
    span = SpanCoreFields(name="judged", attributes=broken, start_time=1.0, end_time=1.0)
    await store.add_span(Span.from_core_fields(span, **ids))
    await store.update_attempt(of.rollout_id, "latest", status="succeeded")
    assert trainer.recording is not None
    data = await collect(trainer.recording.folder, store)
    await store.aclose()
    assert sorted(str(each["reward"]) for each in data["rollouts"]) == ["1.0", "2.0", "None"]
    [shown] = data["traces"][of.rollout_id]["spans"]
    assert shown["raised"][0]["type"] == "broken reward"
    said = await asyncio.to_thread(agl, "show", data["run"]["id"], of.rollout_id, "--runs-dir", tmp_path)
    assert "judged" in said
    assert "broken reward at 'agentlightning.reward.0'" in said


def test_a_run_is_shown_while_the_program_that_made_it_lives(tmp_path: Path) -> None:
    trainer = Trainer(algorithm="baseline", run_dir=tmp_path)
    result = trainer.fit(agent_of_length, ["x", "xx"])
    file = tmp_path / result.run_id / "store.db"
    before = file.read_bytes()
    for name, *runs in (["show"], ["compare", result.run_id, result.run_id]):
        command = [sys.executable, "-c", f"from lightning_viewer.commands import {name}; {name}()", *runs]
        command += ["--runs-dir", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
    assert file.read_bytes() == before
    asyncio.run(trainer.store.aclose())
