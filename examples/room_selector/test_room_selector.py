"""The room selector as a person runs it, with the played model."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
from whole_run import run

HERE = Path(__file__).parent
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
AGL = ("-m", "lightning_core")


def start(*command: str) -> tuple[subprocess.Popen[str], str]:
    """Start a server; return it and the URL that its first line ends with."""
    process = subprocess.Popen([sys.executable, *command], cwd=HERE, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    out: IO[str] | None = process.stdout
    assert out is not None
    return process, "http" + out.readline().strip().rpartition("http")[2]


def test_apo_runs_on_the_played_model_and_says_so(run_python: Callable[..., str]) -> None:
    small = ("beam_rounds=1", "branch_factor=1", "beam_width=1", "val_batch_size=8", "gradient_batch_size=2")
    options = [each for option in small for each in ("--set", f"algorithm.{option}")]
    printed = run_python(*AGL, "train", "config.yaml", *options, "--set", "test_dataset=null")
    assert "PLAYED model" in printed
    assert "succeeded in" in printed
    assert "editor_calls: 1" in printed


@pytest.mark.parametrize(
    ("mode", "shows"),
    [("runner", "succeeded; reward 1.0"), ("hook", "agentlightning.message"), ("trainer", "mean reward 0.75")],
)
def test_the_agent_can_be_debugged(mode: str, shows: str, run_python: Callable[..., str]) -> None:
    assert shows in run_python("debug_room.py", mode)


def test_an_unknown_mode_is_refused(tmp_path: Path) -> None:
    assert "there is no mode 'hooks'" in run(HERE / "debug_room.py", "hooks", runs=tmp_path, status=1)


def test_an_algorithm_a_store_and_a_runner_work_in_processes_of_their_own(
    run_python: Callable[..., str], tmp_path: Path
) -> None:
    model, base_url = start("room_model.py", "0")
    store, url = start(*AGL, "store", "--port", "0")
    key = {"OPENAI_API_KEY": "local", "OPENAI_BASE_URL": base_url}
    worker = subprocess.Popen(
        [sys.executable, *AGL, "worker", "config.yaml", "--store", url, "--concurrency", "4"],
        cwd=HERE,
        env=ENVIRONMENT | key,
    )
    try:
        printed = run_python("own_algorithm.py", url)
        assert "0.94  Of the free rooms" in printed
        assert printed.splitlines()[-1].startswith("best: Of the free rooms")
        assert worker.wait(timeout=60) == 0  # the run has ended
        again = run(HERE / "own_algorithm.py", url, runs=tmp_path, status=1)
        assert "has ended; there is no more work; start `agl serve store`" in again
    finally:
        for process in (worker, store, model):
            process.terminate()
            process.wait(timeout=200)
            if process.stdout is not None:
                process.stdout.close()
