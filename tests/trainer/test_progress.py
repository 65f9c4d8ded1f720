"""What is shown of a run that a program starts."""

import os
import pty
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from lightning_core import PromptTemplate, Trainer, rollout
from lightning_core.errors import InvalidComponent
from lightning_core.runs import FitResult
from tests.cli.test_train import read_terminal

PROGRAM = """
from lightning_core import Trainer, rollout

@rollout
async def solve(task):
    if task == 2:
        raise ValueError("cannot add 2 apples")
    return 1.0

print(Trainer(algorithm="baseline").fit(solve, [1, 2, 3]).metrics)
"""


@rollout
async def solve(task: int) -> float:
    if task < 0:
        raise ValueError("negative")
    return float(task)


def fit(**options: Any) -> FitResult:
    return Trainer(algorithm="baseline", **options).fit(solve, [1, 0, 1, -1])


@pytest.mark.parametrize("progress", [None, False])
def test_a_program_whose_output_is_a_pipe_is_silent(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, progress: bool | None
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    fit(progress=progress)
    assert capfd.readouterr() == ("", "")


def test_lines_and_the_summary_go_to_stderr_on_request(capfd: pytest.CaptureFixture[str]) -> None:
    result = fit(progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert (result.folder, result.report) == (None, None)
    assert f"run {result.run_id} started" in lines[0]
    assert any("] failed: ValueError: negative" in line for line in lines)
    assert re.search(r"^succeeded in .* s: 3 rollouts succeeded, 1 failed$", err, re.M)
    assert "reward on training samples: 0.50 (95% 0.09..0.91, n=2, 1 lost)" in err


def test_the_summary_is_shown_of_a_run_that_raises(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exception, match="negative"):
        Trainer(algorithm="baseline", progress=True).fit(solve, [-1] * 10)
    assert re.search(r"^failed in .* s: 0 rollouts succeeded, \d+ failed", capfd.readouterr().err, re.M)


def test_on_a_terminal_a_run_is_shown_while_stdout_stays_the_programs(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = read_terminal(ours)
        out, _ = process.communicate(timeout=200)
    assert out == b"{'train_reward': 1.0}\n"
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1
    assert "of 3 done" in shown
    assert "2 rollouts succeeded, 1 failed" in shown


def test_in_a_notebook_a_run_is_told_in_lines(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = types.ModuleType("IPython")
    package.get_ipython = lambda: types.SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    fit()
    told = capfd.readouterr().err
    assert "started" in told
    assert "3 rollouts succeeded, 1 failed" in told


def test_a_result_tells_itself_in_a_line(tmp_path: Path) -> None:
    result = fit(run_dir=tmp_path)
    [folder] = tmp_path.iterdir()
    assert repr(result) == (
        f"<FitResult Baseline succeeded, train reward 0.50 (95% 0.09..0.91, n=2, 1 lost), 3 rollouts and 1 failed, "
        f"{folder}>"
    )
    assert (result.folder, result.algorithm) == (folder, "Baseline")
    assert result.report == folder / "report.html"
    assert result.report.is_file()


def test_the_summary_of_a_result_is_what_is_printed_at_the_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    prompts = {"main_prompt": PromptTemplate(template="Answer {task}")}
    result = fit(run_dir=tmp_path, progress=True, initial_resources=prompts)
    shown = capfd.readouterr().err
    assert shown.endswith(f"\n\n{result.summary()}\n")
    assert result.summary().startswith("succeeded in ")
    assert result.summary().endswith(f"run {result.run_id} is kept in {result.folder}\nits report: {result.report}")


def test_the_summary_is_shown_before_a_report_that_takes_its_time(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shown: list[str] = []

    class Reporter:
        def lightning_run_recorded(self, folder: object, store: object) -> None:
            shown.append(capfd.readouterr().err)

    fit(run_dir=tmp_path, progress=True, hooks=Reporter())
    assert "3 rollouts succeeded, 1 failed" in shown[0]
    assert "is kept in" in shown[0]


def test_progress_that_is_something_else_is_refused() -> None:
    with pytest.raises(InvalidComponent, match=r"^progress is 'x'; give True, False, None or a lightning"):
        fit(progress="x")
