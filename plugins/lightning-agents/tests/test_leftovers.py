"""Nothing of a program is left: not when it ends, not at a timeout, not when whoever started it is killed."""

import asyncio
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from programs import alive, python, run, run_until_timeout, shell

from lightning_core.emitter import find_final_reward
from lightning_core.runner import LitAgentRunner
from lightning_core.store import InMemoryLightningStore
from lightning_core.tracer import OtelTracer

SOON_SECONDS = 20.0
START_SECONDS = 60.0
"""How long a Python program may take to import all that it needs, on a busy machine."""


@pytest.fixture
def marker() -> str:
    """A word that only the processes of one test have in their command lines."""
    return f"marker-{uuid.uuid4().hex}"


def until(condition: Callable[[], object], seconds: float = SOON_SECONDS) -> bool:
    """Whether a condition comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def begun(condition: Callable[[], object]) -> Coroutine[Any, Any, bool]:
    """Whether a program gets so far in time."""
    return asyncio.to_thread(until, condition, START_SECONDS)


def family(marker: str, place: Path) -> str:
    """A shell script with a child and a grandchild, all of which ignore SIGTERM; it makes a file when they run."""
    sleep = f'trap "" TERM; sleep 300; : {marker}'
    return f"trap '' TERM; (sh -c '{sleep}' & sh -c '{sleep}') & : >{place}; sleep 300; : {marker}"


async def test_timeout_ends_children_and_grandchildren(marker: str, tmp_path: Path) -> None:
    ready = tmp_path / "ready"

    ran = await run_until_timeout(shell(family(marker, ready)), begun(ready.exists))

    assert ran.failure == {"type": "AgentTimeout", "message": "the agent ran longer than 60 s"}
    assert until(lambda: not alive(marker))


async def test_timeout_ends_what_has_left_the_group(marker: str, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    child = f"import pathlib, time; pathlib.Path({str(ready)!r}).touch(); time.sleep(300)  # {marker}"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], start_new_session=True)"

    await run_until_timeout(python(script), begun(ready.exists))

    assert until(lambda: not alive(marker))


async def test_timeout_leaves_what_the_program_had_said_in_a_span(tmp_path: Path) -> None:
    ready = tmp_path / "ready"

    ran = await run_until_timeout(shell(f"echo thinking >&2; : >{ready}; sleep 300"), begun(ready.exists))

    (span,) = ran.spans
    assert span.attributes["exception.type"] == "lightning_core.errors.ProgramFailed"
    said = span.attributes["exception.message"]
    assert isinstance(said, str)
    assert said.endswith("was stopped before its end; its stderr ends with: thinking")


@pytest.mark.parametrize("what", ["rollout", "runner"])
async def test_cancelling_ends_the_program(marker: str, tmp_path: Path, what: str) -> None:
    ready, store = tmp_path / "ready", InMemoryLightningStore()
    queued = await store.enqueue_rollout(None)
    runner = LitAgentRunner(OtelTracer(instrument=()), max_rollouts=1)
    with runner.run_context(agent=shell(family(marker, ready)), store=store):
        going = asyncio.create_task(runner.iter())
        assert await begun(ready.exists)
        assert alive(marker)
        if what == "rollout":
            await store.update_rollout(queued.rollout_id, status="cancelled")
        else:
            going.cancel()
        await asyncio.wait((going,))

    assert going.cancelled() is (what == "runner")
    assert until(lambda: not alive(marker))


async def test_what_a_program_leaves_in_the_background_ends_with_it(marker: str) -> None:
    began = time.monotonic()

    ran = await run(shell(f"sh -c 'sleep 300; : {marker}' & echo 1"))

    assert find_final_reward(ran.spans) == 1.0
    assert until(lambda: not alive(marker))
    assert time.monotonic() - began < SOON_SECONDS  # although the background process held its output open


async def test_daemon_that_holds_the_output_does_not_hold_the_rollout(marker: str) -> None:
    child = f"import time; time.sleep(300)  # {marker}"
    script = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True); print(1)"
    )
    try:
        ran = await run(python(script))

        assert find_final_reward(ran.spans) == 1.0
    finally:
        for each in alive(marker):
            each.kill()


KILLED_RUNNER = """
import sys
from lightning_core import Trainer
from lightning_http.programs import Guard
from lightning_agents import CommandAgent

protect = Guard.protect


def protect_and_say(guard, group):
    protect(guard, group)
    print("protected", flush=True)


Guard.protect = protect_and_say
Trainer(algorithm="baseline", n_runners=2).fit(CommandAgent(["sh", "-c", sys.argv[1]]), [1, 2])
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda each: each.name)
def test_killed_runner_leaves_no_program_behind(marker: str, tmp_path: Path, number: signal.Signals) -> None:
    ready = tmp_path / "ready"
    runner = subprocess.Popen(
        [sys.executable, "-c", KILLED_RUNNER, family(marker, ready)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert runner.stdout is not None
        for _ in range(2):  # a runner that is killed before it has told the guard which group that is leaves it
            assert runner.stdout.readline() == "protected\n"
        assert until(lambda: len(alive(marker)) >= 7)  # two families of three, and the runner
    finally:
        runner.send_signal(number)
        runner.communicate()

    assert until(lambda: not alive(marker))
