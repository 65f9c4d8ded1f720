"""No process of a program is left: not when it ends, not when it is stopped."""

import asyncio
import os
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from lightning_http.programs import Guard, Program

SOON_SECONDS = 20.0


def wait_until_exists(path: Path) -> None:
    deadline = time.monotonic() + SOON_SECONDS
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def program(folder: Path, *command: str, grace_seconds: float = 5.0) -> Program:
    """A program that reads `stdin` of a folder."""
    return Program(
        command,
        environment={"PATH": os.environ["PATH"]},
        folder=str(folder),
        stdin=folder / "stdin",
        max_output_bytes=100,
        grace_seconds=grace_seconds,
    )


async def test_program_may_end_by_itself_when_it_is_stopped(tmp_path: Path) -> None:
    farewell, ready = tmp_path / "farewell", tmp_path / "ready"
    (tmp_path / "stdin").write_bytes(b"")
    script = f"trap 'echo bye >{farewell}; exit 0' TERM; : >{ready}; while :; do sleep 0.05; done"
    async with program(tmp_path, "sh", "-c", script, grace_seconds=SOON_SECONDS):
        await asyncio.to_thread(wait_until_exists, ready)

    assert farewell.read_text() == "bye\n"


def test_guard_that_is_released_kills_nobody() -> None:
    sleeper = subprocess.Popen(["sleep", "300"], start_new_session=True)
    try:
        guard = Guard()
        guard.protect(sleeper.pid)
        guard.release()

        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()


async def test_guard_that_was_killed_does_not_matter_to_the_program(tmp_path: Path) -> None:
    (tmp_path / "stdin").write_bytes(b"")
    before = {each.pid for each in psutil.Process().children()}
    async with program(tmp_path, "sh", "-c", "sleep 0.3; echo 1") as running:
        started = [each for each in psutil.Process().children() if each.pid not in before]
        guard = min(started, key=lambda each: (each.create_time(), each.pid))  # it starts first
        guard.kill()
        assert await running.wait() == 0

    assert running.stdout.text() == "1\n"


@pytest.mark.usefixtures("nothing_left_running")
async def test_many_programs_at_a_time_leave_no_process_thread_or_descriptor(tmp_path: Path) -> None:
    (tmp_path / "stdin").write_bytes(b"7")
    this = psutil.Process()

    async def one() -> str:
        async with program(tmp_path, "cat") as running:
            await running.wait()
        return running.stdout.text()

    assert await one() == "7"
    descriptors, children = this.num_fds(), {each.pid for each in this.children()}
    assert await asyncio.gather(*(one() for _ in range(40))) == ["7"] * 40

    assert {each.pid for each in this.children()} <= children
    assert this.num_fds() <= descriptors
