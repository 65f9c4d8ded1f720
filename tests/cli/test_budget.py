"""A budget on the command line: its exit status, where it is told, and how a run goes on."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from lightning_proxy.openai_backend import OpenAIBackend
from lightning_proxy.testing import FakeEngine

from lightning_core.cli import BUDGET, agl
from lightning_core.registry import default_registry
from lightning_core.runs.folder import RunFolder, runs_in
from tests.trainer.conftest import engine_apart

lightning_sqlite = pytest.importorskip("lightning_sqlite", reason="a run that has ended is continued from its store")

AGENT = """
import asyncio
import json
import os
import signal
import urllib.error
import urllib.request

from lightning_core import rollout
from lightning_core.trainer.budgeting import STATE


async def saved_calls():
    kept = await ask.get_trainer().store.load_state(STATE)
    return kept["used"]["calls"] if kept else 0


def call(llm, text):
    body = json.dumps({"model": llm.model, "messages": [{"role": "user", "content": text}]}).encode()
    headers = {"authorization": f"Bearer {llm.api_key}"}
    request = urllib.request.Request(f"{llm.endpoint}/chat/completions", body, headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as exc:
        exc.close()
        raise


@rollout
async def ask(task, llm):
    if task == os.environ.get("DIE_AT"):
        while await saved_calls() < 3:  # what was used is saved each second
            await asyncio.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.to_thread(call, llm, str(task))
    return 1.0
"""

Agl = Callable[..., Result]


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with engine_apart() as engine:
        yield engine


@pytest.fixture
def config(engine: FakeEngine, own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.delenv("AGL_KEY", raising=False)
    Path("budget_agent.py").write_text(AGENT)
    params = {"model": "hosted_vllm/small", "api_base": engine.url, "input_cost_per_token": 0.001}
    file = Path("config.yaml")
    file.write_text(
        json.dumps(
            {
                "agent": "budget_agent:ask",
                "algorithm": "baseline",
                "train_dataset": ["a", "b", "c", "d", "e", "f"],
                "llm_proxy": {"model_list": [{"model_name": "small", "litellm_params": params}]},
                "budget": {"calls": 4},
            }
        )
    )
    with default_registry().register("backends", "openai", OpenAIBackend):
        yield file


@pytest.fixture
def run() -> Agl:
    return lambda *arguments: CliRunner().invoke(agl, arguments, catch_exceptions=False)


@pytest.mark.usefixtures("config")
def test_a_run_that_its_budget_has_ended_says_so_everywhere(run: Agl, runs_dir: Path) -> None:
    ended = run("train", "config.yaml", "--output", "result.json")
    assert ended.exit_code == BUDGET == 3
    (folder,) = runs_in(runs_dir)
    told = "the run's budget of 4 calls is used up (4 calls by now)"
    assert re.search(r"^budget in .*: 4 rollouts succeeded(, \d retried)?, 2 unfinished$", ended.stdout, re.M)
    assert f"\n  {told}\n" in ended.stdout
    assert re.search(r"\n  the agent made 4 model calls, \d+ tokens in, \d+ out, \$0\.\d+\n", ended.stdout)
    more = f"go on with it: agl resume {folder.run_id} --set budget.calls=MORE (more than 4)\n"
    assert ended.stdout.endswith(more)
    assert json.loads(Path("result.json").read_text())["budget"]["ended_by"] == "calls"

    assert re.search(rf"^{folder.run_id}  baseline +budget \(calls\)  ", run("runs").stdout, re.M)
    assert json.loads(run("runs", "--json").stdout)[0]["ended_by"] == "calls"
    shown = run("show", folder.run_id).stdout
    assert f"  budget     {told}\n" in shown
    assert "  usage      the agent made 4 model calls, " in shown
    assert more in shown


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("llm_proxy=null", "budget limits calls, which the model proxy counts, and there is none"),
        ("budget.cals=1", "budget has no option 'cals'"),
        ("llm_proxy.model_list=[]", "llm_proxy: model_list is empty"),
    ],
)
def test_what_is_wrong_is_one_line_before_anything_starts(
    run: Agl, config: Path, runs_dir: Path, option: str, message: str
) -> None:
    result = run("train", str(config), "--set", option)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(runs_in(runs_dir)) == []


@pytest.mark.slow
@pytest.mark.usefixtures("config")
def test_calls_before_a_kill_count_after_it_and_a_run_goes_on_with_more(engine: FakeEngine, runs_dir: Path) -> None:
    def process(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "lightning_core", *arguments]
        return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)

    killed = process("train", "config.yaml", DIE_AT="d")
    assert killed.returncode == -9, killed.stderr
    (folder,) = runs_in(runs_dir)
    assert len(engine.received) == 3
    resumed = process("resume", folder.run_id)
    assert (resumed.returncode, len(engine.received)) == (BUDGET, 4), resumed.stderr
    manifest = RunFolder(folder.path).manifest()
    assert manifest.result is not None
    assert manifest.result.budget is not None
    assert manifest.result.budget.used["calls"] == 4
    # A larger budget is not a change that has to be forced.
    more = process("resume", folder.run_id, "--set", "budget.calls=6")
    assert (more.returncode, len(engine.received)) == (0, 6), more.stderr
    assert "  used of the run's budget: 6 of 6 calls\n" in more.stdout
