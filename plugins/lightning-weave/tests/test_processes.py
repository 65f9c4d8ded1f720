"""Agents are traced with Weave in one process, and an algorithm learns from that in another, over the store server."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from lightning_proxy.testing import FakeEngine, tokens_of

OTHER_PYTHON = "AGL_TEST_ALGORITHM_PYTHON"
"""Names a Python of another environment for the algorithm's side, such as that of lightning-verl."""

AGENT = """
import openai
import weave

from lightning_core import rollout


@weave.op
async def ask(task):
    async with openai.AsyncOpenAI(base_url="ENGINE", api_key="k") as client:
        answer = await client.chat.completions.create(
            model="small", messages=[{"role": "user", "content": f"Where? {task}"}],
            extra_body={"return_token_ids": True},
        )
    return answer.choices[0].message.content


@rollout
async def solve(task):
    return float(await ask(task) == "Paris.")
"""

CONFIG = """
agent: tracing:solve
tracer: weave
algorithm: baseline
train_dataset: []
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "python",
    [
        pytest.param(sys.executable, id="plain"),
        pytest.param(
            os.environ.get(OTHER_PYTHON, ""),
            id="verl",
            marks=pytest.mark.skipif(OTHER_PYTHON not in os.environ, reason=f"{OTHER_PYTHON} names no other Python"),
        ),
    ],
)
async def test_traces_of_one_process_are_learned_from_in_another(tmp_path: Path, python: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AGL_")}
    async with FakeEngine(["Paris."]) as engine:
        (tmp_path / "tracing.py").write_text(AGENT.replace("ENGINE", engine.url))
        (tmp_path / "config.yaml").write_text(CONFIG)
        side = Path(__file__).with_name("algorithm_side.py")
        algorithm = await asyncio.create_subprocess_exec(
            python,
            str(side),
            str(tmp_path),
            cwd=tmp_path,
            env={**environment, "AGL_KEY": "everything", "AGL_RUNNER_KEY": "runners"},
            stderr=asyncio.subprocess.PIPE,
        )
        processes = [algorithm]
        try:
            async with asyncio.timeout(100):
                while not (tmp_path / "url").exists():
                    assert algorithm.returncode is None, await algorithm.communicate()
                    await asyncio.sleep(0.05)
                runners = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "lightning_core", "runner", "config.yaml", "--concurrency", "2"),
                    *("--store", (tmp_path / "url").read_text()),
                    cwd=tmp_path,
                    env={**environment, "AGL_KEY": "runners"},
                    stderr=asyncio.subprocess.PIPE,
                )
                processes.insert(0, runners)
                for process in processes:  # runners end with the run
                    _, said = await process.communicate()
                    assert process.returncode == 0, said.decode()
        finally:
            for process in processes:
                if process.returncode is None:
                    process.terminate()
                    await process.communicate()
    learned = json.loads((tmp_path / "learned.json").read_text())
    assert learned["rewards"] == [1.0] * 4
    assert {"ask", "openai.chat.completions.create"} <= set(learned["names"])
    assert learned["token_ids"] == [tokens_of("Paris.")] * 4
    if python != sys.executable:
        assert (learned["has_weave"], learned["has_verl"]) == (False, True)
