"""Ctrl-C and SIGTERM while model calls hang: `agl train` ends soon, and nothing of its proxy is left."""

import json
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from lightning_proxy.testing import FakeEngine

from tests.cli.test_interrupt import LIMIT_SECONDS, interrupt, is_soon_gone, read_until, started
from tests.trainer.conftest import engine_apart

AGENTS = """
import asyncio, json, os, signal, urllib.request

from lightning_core import rollout

# Who runs tests in the background may have switched the signal off.
signal.signal(signal.SIGINT, signal.default_int_handler)


def call(llm):
    body = json.dumps({"model": llm.model, "messages": [{"role": "user", "content": "?"}]}).encode()
    headers = {"authorization": f"Bearer {llm.api_key}"}
    request = urllib.request.Request(f"{llm.endpoint}/chat/completions", body, headers)
    os.write(1, f"{llm.endpoint}\\nready\\n".encode())  # in one piece, from several threads
    urllib.request.urlopen(request).close()


@rollout
async def in_the_loop(task, llm):
    await asyncio.to_thread(call, llm)
    return 1.0


@rollout
def in_a_thread(task, llm):
    call(llm)
    return 1.0
"""


@pytest.fixture
def slow_engine() -> Iterator[FakeEngine]:
    """An engine that never answers."""
    with engine_apart() as engine:
        engine.faults = ["never"] * 100
        yield engine


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "number", "status"),
    [
        pytest.param("in_the_loop", signal.SIGINT, 130, id="async agent"),
        pytest.param("in_a_thread", signal.SIGTERM, 143, id="sync agent"),
        pytest.param("in_a_thread", signal.SIGINT, 130, id="sync agent, Ctrl-C"),
    ],
)
def test_train_ends_while_model_calls_hang(
    tmp_path: Path, slow_engine: FakeEngine, agent: str, number: int, status: int
) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "hanging.py").write_text(AGENTS)
    model = {"model_name": "small", "litellm_params": {"model": "hosted_vllm/small", "api_base": slow_engine.url}}
    config = {
        "agent": f"hanging:{agent}",
        "algorithm": "baseline",
        "n_runners": 2,
        "train_dataset": [1, 2],
        "llm_proxy": {"model_list": [model]},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    command = ["-m", "lightning_core", "train", "config.yaml", "--output", "result.json"]
    with started(tmp_path, *command) as process:
        lines = read_until(process, "ready", times=2)
        rest, seconds = interrupt(process, number)
    errors = (tmp_path / "errors.txt").read_text()
    assert process.returncode == status, errors
    assert seconds < LIMIT_SECONDS
    assert "interrupted in" in "\n".join(rest)
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "interrupted"
    found = next(re.finditer(r"http://127\.0\.0\.1:(\d+)/rollout/", "\n".join(lines)))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(found[1])), timeout=1).close()
    assert is_soon_gone(process.pid)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert "Traceback" not in errors, errors
