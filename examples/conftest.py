"""What the tests of the examples share."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

# What is about training is tested where torch is installed: in an environment of its own.
collect_ignore = (
    [] if find_spec("verl") else [f"rl_calculator/test_{name}.py" for name in ("curve", "taught_model", "train")]
)


@pytest.fixture
def copy_with_model(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Path]:
    """Copies files of the example's folder, with the model's server at this URL; returns the last one."""

    def copy(url: str, *names: str) -> Path:
        for name in names:
            text = (request.path.parent / name).read_text(encoding="utf-8")
            (tmp_path / name).write_text(text.replace("http://127.0.0.1:8000/v1", url), encoding="utf-8")
        return tmp_path / names[-1]

    return copy


@pytest.fixture
def run_python(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., str]:
    """Runs Python in the example's folder, without a key for a model; returns what it printed."""

    def run(*arguments: str) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=request.path.parent,
            env=environment | {"AGL_RUNS_DIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    return run
