"""A tracer in a process of its own, whose connections are watched."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agentops_parts import CHAT
from lightning_agentops import library

from lightning_core.errors import TracerError

PROGRAM = Path(__file__).parent / "lone_program.py"


def run(initialises: str, folder: Path, **variables: str) -> dict[str, Any]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("AGENTOPS_", "OTEL_"))}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(PROGRAM), initialises],
        cwd=folder,
        env={**own, **variables},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.slow
def test_nothing_leaves_the_machine_and_nothing_is_left_behind(tmp_path: Path) -> None:
    told = run("nobody", tmp_path, AGENTOPS_API_KEY="11111111-1111-1111-1111-111111111111")
    assert told == {
        "outside": [],
        "names": [CHAT, CHAT],
        "threads": [],
        "files": [],
    }


@pytest.mark.slow
def test_an_agent_that_initialises_agentops_without_a_key_is_recorded_and_reaches_nobody(tmp_path: Path) -> None:
    told = run("agent", tmp_path)
    assert (told["outside"], told["threads"]) == ([], [])
    assert [name for name in told["names"] if name == CHAT] == [CHAT, CHAT]


def test_a_program_that_has_initialised_agentops_is_told_to_remove_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.part(library.CORE).tracer, "_initialized", True)
    with pytest.raises(TracerError, match=r"has called agentops\.init\(\), so its spans go to AgentOps .*; remove"):
        library.Instrumentation(library.RoutingProvider()).start()
