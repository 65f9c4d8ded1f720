"""Without a project, nothing leaves the machine: not at import, not in a run, not at the end of the process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("offline_run.py")


def run(*arguments: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WEAVE_", "WANDB_"))}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=100, env=kept, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("order", [(), ("weave-first",)], ids=["tracer-first", "weave-first"])
def test_a_run_looks_nothing_up_and_connects_to_nobody(order: tuple[str, ...]) -> None:
    told = run(*order)
    assert "outside: []" in told
    assert "'ask', 'fail', 'openai.chat.completions.create'] 6" in told
    # W&B, where it is installed, keeps a daemon thread of its own.
    assert "threads: ['MainThread']" in told.replace(", 'wandb-AsyncioManager-main'", "")


def test_what_would_leave_the_machine_is_seen() -> None:
    assert "outside: ['socket.getaddrinfo outside.invalid']" in run("control")
