"""Agents of frameworks, in a process of their own: AgentOps patches a framework while it is first imported."""

import subprocess
import sys
from pathlib import Path


def test_agents_of_frameworks_work_unchanged_and_each_call_counts_once() -> None:
    program = str(Path(__file__).with_name("frameworks.py"))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
