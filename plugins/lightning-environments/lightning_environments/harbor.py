"""Tasks of harbor: a folder is a task, harbor runs an agent on it in a sandbox, and its verifier gives the reward.

As a program, this module runs one trial for a `CommandAgent`.

https://github.com/harbor-framework/harbor
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lightning_core.agent import Environment, LitAgent
from lightning_core.errors import ConfigError
from lightning_environments.agents import library

_OUT_OF_REACH = 75
"""The exit status by which a program says that what it needs cannot be reached."""

_SANDBOXES = {"docker": "docker", "podman": "podman", "apple-container": "container"}
"""The program that one of harbor's environments needs on this machine."""


class Harbor(Environment):
    """Tasks in folders, run by the program `harbor` with the attempt's model.

    Args:
        path: A folder of tasks, each with a `task.toml`.
        agent: The agent that harbor runs, as `terminus-2`.
        sandbox: Where it runs them, harbor's `--env`.
        harbor: The program; it may be in another environment, as it needs Python 3.12.

    Raises:
        ConfigError: When there are no tasks, no such program, or the sandbox is not there; says what to start.
    """

    def __init__(
        self, path: str, *, agent: str = "terminus-2", sandbox: str = "docker", harbor: str = "harbor"
    ) -> None:
        self._folders = sorted(each.parent.resolve() for each in Path(path).glob("*/task.toml"))
        if not self._folders:
            raise ConfigError(f"path is {path!r}, where no folder has a task.toml; name a folder of harbor's tasks")
        program = shutil.which(harbor)
        if program is None:
            raise ConfigError(
                f"harbor is {harbor!r}, and there is no such program; harbor needs Python 3.12 or newer, in an "
                "environment of its own: pip install harbor==0.25.0. Then name its program"
            )
        needed = _SANDBOXES.get(sandbox)
        if needed is not None and shutil.which(needed) is None:
            raise ConfigError(f"sandbox is {sandbox!r}, and there is no {needed} here; start it, or name another one")
        self._command = [sys.executable, "-m", __name__, program, agent, sandbox]

    def tasks(self, count: int) -> Iterator[dict[str, str]]:
        """Yield the folders, by name."""
        return ({"name": folder.name, "path": str(folder)} for folder in self._folders[:count])

    def question(self, task: dict[str, str]) -> str:
        """Return the task's name: its folder may be another one on another machine."""
        return task["name"]

    def agent(self) -> LitAgent[Any]:
        """Return an agent that runs a trial, and returns the verifier's rewards."""
        kind = library("lightning_agents", extra="harbor").CommandAgent
        agent: LitAgent[Any] = kind(self._command, reward="file")
        return agent


def run_trial(program: str, agent: str, sandbox: str, task: dict[str, str], jobs: Path) -> tuple[int, Any]:
    """Run one trial; return an exit status, and the rewards or what went wrong."""
    model = os.environ.get("AGL_MODEL", "")
    command = [program, "run", "--path", task["path"], "--agent", agent, "--model", f"openai/{model}"]
    command += ["--base-url", os.environ.get("OPENAI_BASE_URL", ""), "--env", sandbox, "--jobs-dir", str(jobs)]
    command += ["--n-attempts", "1", "--n-concurrent", "1", "--quiet", "--yes"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    trials = [trial for path in jobs.rglob("result.json") if "trial_name" in (trial := json.loads(path.read_text()))]
    if not trials:
        return _OUT_OF_REACH, f"harbor left no trial; it ended with {done.returncode}: {done.stdout.strip()[-400:]}"
    return outcome_of(trials[0])


def outcome_of(trial: dict[str, Any]) -> tuple[int, Any]:
    """Return the exit status and the rewards of a trial's `result.json`, or what went wrong.

    An exception that is not the agent's is of the infrastructure, and says nothing of the agent.
    """
    failed = library("lightning_export.importing", extra="harbor").AGENT_ERRORS
    steps = [trial, *(trial.get("step_results") or ())]
    rewards = (trial.get("verifier_result") or {}).get("rewards")
    for raised in filter(None, (step.get("exception_info") for step in steps)):
        error = f"{raised['exception_type']}: {raised['exception_message']}"
        if raised["exception_type"] not in failed:
            return _OUT_OF_REACH, error
        if not rewards:
            return 1, error
    return (0, rewards) if rewards else (_OUT_OF_REACH, "harbor's verifier gave no rewards")


def main(arguments: Sequence[str]) -> int:
    """Run a trial of the task on stdin; see `CommandAgent`."""
    program, agent, sandbox = arguments
    with tempfile.TemporaryDirectory(prefix="agl-harbor-") as jobs:
        status, result = run_trial(program, agent, sandbox, json.load(sys.stdin), Path(jobs))
    if status:
        print(result, file=sys.stderr)
    else:
        Path(os.environ["AGL_REWARD_FILE"]).write_text(json.dumps(result))
    return status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
