"""agentlightning 0.3's released client and runner work against our server, unchanged."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

PEER = os.environ.get("AGL_PEER_PYTHON")
"""A Python in an environment that has agentlightning 0.3; it cannot be the one of these tests."""


@pytest.mark.slow
@pytest.mark.skipif(not PEER, reason="AGL_PEER_PYTHON does not name a Python that has agentlightning 0.3")
async def test_the_released_client_and_runner_work_unchanged(server):
    program = Path(__file__).with_name("peers_program.py")
    process = await asyncio.create_subprocess_exec(
        PEER or sys.executable,
        str(program),
        server.url,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 110)
    assert process.returncode == 0, output.decode()
