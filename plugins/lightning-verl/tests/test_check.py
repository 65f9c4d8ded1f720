"""The check that anybody can run. Its trainings are run by hand, see docs/verl.md."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from lightning_verl.check.harness import MARK, Result, end, processes, run

START = "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
KEEP = "from pathlib import Path; Path('pid').write_text(str(child.pid))"


def stage(folder: Path, name: str, *code: str, limit_seconds: float = 60.0) -> Result:
    command = (sys.executable, "-c", "; ".join(code))
    return run(name, command, folder, limit_seconds=limit_seconds, device="cpu")


def test_a_stage_that_fails_says_what_was_expected_and_what_was_got_and_where_the_log_is(tmp_path: Path) -> None:
    wrong = stage(tmp_path, "wrong", """open('wrong.json', 'w').write('{"expected": "a rise", "got": "a fall"}')""")
    assert wrong.said == f"expected a rise; got a fall; log: {tmp_path / 'wrong.log'}"
    crash = stage(tmp_path, "crash", "print('before', flush=True)", "raise OSError('no space')")
    assert crash.status == "FAILED"
    assert crash.said.startswith("expected a result; got exit status 1: OSError: no space; log: ")
    right = stage(tmp_path, "right", """open('right.json', 'w').write('{"shown": "a rise"}')""")
    assert (right.status, right.said) == ("ok", "a rise")


def test_a_stage_past_its_limit_is_ended_with_all_that_it_has_started(tmp_path: Path) -> None:
    ended = stage(tmp_path, "slow", START, KEEP, "time.sleep(600)", limit_seconds=10)
    assert ended.said.startswith("expected an end within 10 s; got none, so it was ended; log: ")
    assert ended.memory_bytes > 2**20
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_what_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = f"{os.getpid()}-stuck"
    with subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: mark}) as stuck, monkeypatch.context() as patched:
        patched.setattr(psutil.Process, "kill", lambda _: None)
        try:
            while not processes(mark):  # its environment can be read a moment after it has begun
                time.sleep(0.01)
            with pytest.raises(RuntimeError, match=rf"^{stuck.pid} sleep 600 was killed, and does not end"):
                end(mark, seconds=0.1)
        finally:
            stuck.kill()


def test_a_command_that_is_told_to_end_ends_its_stage(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lightning_verl.check", "--device", "cpu", "--folder", str(tmp_path)]
    with subprocess.Popen(command) as process:
        deadline = time.monotonic() + 60
        while not processes(f"{process.pid}-") and time.monotonic() < deadline:
            time.sleep(0.05)
        process.terminate()
        assert process.wait(60) == 143
        assert processes(f"{process.pid}-") == []


def test_the_command_has_a_line_for_each_stage_and_its_status_tells(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lightning_verl.check", "--device", "cpu", "--folder", str(tmp_path)]
    done = subprocess.run(
        [*command, "--only", "versions,vllm-grpo"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, versions, model, vllm, last = done.stdout.splitlines()
    assert first.endswith(f"on cpu; logs: {tmp_path}")
    assert versions.split()[:2] == ["versions", "ok"]
    assert "verl 0.9" in versions
    assert model.split()[:2] == ["model", "ok"]
    assert vllm.split()[:2] == ["vllm-grpo", "skipped"]
    assert last == "all passed"
    unknown = subprocess.run([*command, "--only", "hf-gppo"], capture_output=True, text=True, timeout=60, check=False)
    assert unknown.returncode == 2
    assert "no stage hf-gppo; there are: versions, model, hf-grpo" in unknown.stderr
