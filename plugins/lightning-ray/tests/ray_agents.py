"""Agents that actors import."""

import asyncio
import os
import signal
from pathlib import Path

from lightning_core import rollout


@rollout
async def double(task: int) -> float:
    await asyncio.sleep(0.01)
    return 2.0 * task


@rollout
async def wait_for(task: tuple[int, str]) -> float:
    """Wait until a file is there."""
    number, gate = task
    while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.05)
    return 2.0 * number


@rollout
def die_once(task: str) -> float:
    """Die where nobody has died before."""
    flag = Path(task)
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


@rollout
async def hang(task: str) -> float:
    """Say that it is here, by making a file, and never end."""
    Path(task).touch()  # noqa: ASYNC240
    await asyncio.Event().wait()
    return 0.0
