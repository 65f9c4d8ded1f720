"""The one command, as a person runs it, with one step; and the config for GPUs, as far as it can be known without."""

import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from agent_client import AgentClient, solve
from lightning_proxy.testing import FakeEngine
from train_service import service, tell_address
from whole_run import run

from lightning_core import Trainer
from lightning_core.config import load_job
from lightning_core.runs.folder import runs_in
from lightning_core.runs.metrics import read_metrics

HERE = Path(__file__).parent

KILLED = """
import os, signal, urllib.request
from pathlib import Path
from train_service import service, tell_address
with service(Path("llm_server")) as url:
    assert urllib.request.urlopen(f"{url}/openapi.json").status == 200
    os.kill(os.getpid(), signal.SIGKILL)
"""

needs_verl = pytest.mark.skipif(find_spec("verl") is None, reason="lightning-verl has an environment of its own")


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """A file of samples in the form of GSM8K's."""
    path = tmp_path / "rows.jsonl"
    rows = [
        {"question": f"Ann has {n % 4} pens and buys {n // 4}. How many?", "answer": f"#### {n % 4 + n // 4}"}
        for n in range(4, 22)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def notify_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notify") / "llm_server"


@pytest.fixture(scope="module")
def service_url(notify_file: Path) -> Iterator[str]:
    with service(notify_file) as url:
        yield url


def calls_tool(answer: str) -> dict[str, Any]:
    function = {"name": "calc_gsm8k_reward", "arguments": json.dumps({"answer": answer})}
    return {"tool_calls": [{"id": f"call-{answer}", "type": "function", "function": function}]}


@needs_verl
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_command_trains_the_model_behind_the_service(rows: str, tmp_path: Path) -> None:
    printed = run(
        HERE / "train_service.py", "--data", rows, "--steps=1", "--teaching-steps=1", "--runs-dir=.", runs=tmp_path
    )
    assert re.search(r"row by row: .*n=9\)", printed)
    (folder,) = runs_in(tmp_path)
    assert folder.manifest().outcome == "succeeded"
    (step,) = [each.metrics for each in read_metrics(folder.metrics_file) if "training/n_rollouts" in each.metrics]
    assert step["training/n_rollouts_w_reward"] == 64, "the service answered each of them"
    assert step["training/n_rollouts_w_trace"] == 64, "each call was known by its trace_id, and answered as Default"
    assert step["training/n_rollouts_wo_token_ids"] == 0


@pytest.mark.parametrize(("number", "turns", "calls", "reward"), [("5", 5, 2, 1.0), ("6", 5, 3, 0.0), ("5", 1, 1, 0.0)])
async def test_the_agent_uses_its_tool_and_knows_its_model_and_its_turns(
    service_url: str,
    notify_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: str,
    turns: int,
    calls: int,
    reward: float,
) -> None:
    monkeypatch.setenv("AGENT_SERVICE_URL", service_url)
    answers: list[str | dict[str, Any]] = [calls_tool("3"), calls_tool("5"), "Half a character: \ud83d\n#### 7"]
    async with FakeEngine(answers) as engine:
        params = {"model": "hosted_vllm/small", "api_base": engine.url}
        proxy = {
            "key": "",
            "port": tell_address(notify_file),
            "attribution_header": "trace_id",
            "model_list": [{"model_name": "small", "litellm_params": params}],
            "models": [{"model_name": "small", "aliases": ["Default"]}],
        }
        row = {"question": "2 + 3?", "answer": f"#### {number}", "max_turns": turns}
        result = await Trainer(algorithm="baseline", llm_proxy=proxy).fit_async(solve, [row])
    assert (result.metrics["train_reward"], result.metrics["model_calls"]) == (reward, calls)
    said = [each["content"] for each in engine.received[-1].fields["messages"] if each["role"] == "tool"]
    assert said == ["0.0"] * (calls - 1)


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"answer": "none"}, "does not end with '#### ' and a number"),
        ({"answer": "#### 5", "max_turns": 0}, "max_turns"),
    ],
)
async def test_a_row_that_cannot_be_scored_is_refused_and_not_scored(
    service_url: str, row: dict[str, Any], error: str
) -> None:
    answer = await AgentClient(service_url).chat("ro/at", {}, question="2 + 3?", **row)
    assert list(answer) == ["error"]
    assert answer["error"].startswith("422: ")
    assert error in answer["error"]


async def test_a_failing_engine_is_a_fault(service_url: str, notify_file: Path) -> None:
    async with FakeEngine() as engine:
        engine.faults = [503] * 9
        notify_file.write_text(urlsplit(engine.url).netloc)  # noqa: ASYNC240 - a file of one line
        answer = await AgentClient(service_url).chat("ro/at", {}, question="2 + 3?", answer="#### 5")
    assert "the model is out of reach" in answer["fault"]


def test_rows_that_cannot_be_guessed_are_an_error_before_anything_starts(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "2 + 3?", "answer": 5}\n{"question": "5 + 5?", "answer": "#### 10"}\n{"text": ""}\n')
    printed = run(HERE / "train_service.py", "--data", str(rows), "--runs-dir=.", runs=tmp_path, status=1)
    assert "rows.jsonl needs 16 rows whose answer is '#### ' and one digit" in printed
    assert "Traceback" not in printed


def test_the_service_ends_with_a_command_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(HERE)!r})\n{KILLED}")
    run(script, runs=tmp_path, status=-9)


@needs_verl
def test_the_config_for_gpus_is_a_job_whose_options_fit_together(rows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning_verl import VERL
    from lightning_verl.config import check_settings

    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)  # with them the model would have to be there
    overrides = [f"{name}_dataset={rows}" for name in ("train", "val", "test")]
    algorithm = load_job(HERE / "gpu.yaml", overrides=overrides, dry_run=True).trainer.algorithm
    assert isinstance(algorithm, VERL)
    check_settings(algorithm.settings, n_train=7273, n_val=200, n_test=1319)
