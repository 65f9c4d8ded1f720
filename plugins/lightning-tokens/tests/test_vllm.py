"""The life of a vLLM server; a small program stands for it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from click.testing import CliRunner
from lightning_tokens.vllm import VLLMFailed, VLLMServer
from lightning_tokens.vllm_command import vllm

SERVER = """
import http.server, os, subprocess, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
print("arguments", *sys.argv[1:], flush=True)
if "--die" in sys.argv:
    sys.exit("there is no such model")
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", deaf])
open("pids", "w").write(f"{os.getpid()} {child.pid}")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *a): pass
place = sys.argv.index("--port")
http.server.HTTPServer((sys.argv[sys.argv.index("--host") + 1], int(sys.argv[place + 1])), Handler).serve_forever()
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.py").write_text(SERVER)
    return [sys.executable, str(tmp_path / "server.py")]


def running(folder: Path) -> list[int]:
    """Return which of the server and its child still run."""
    pids = [int(pid) for pid in (folder / "pids").read_text().split()]
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def wait_until_gone(folder: Path, seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while running(folder):
        assert time.monotonic() < deadline, running(folder)
        time.sleep(0.05)


async def test_it_answers_when_it_has_started_and_nothing_is_left_when_it_has_stopped(
    command: list[str], tmp_path: Path
) -> None:
    async with VLLMServer("org/model", command=command, grace_seconds=1, arguments=["--max-model-len", "99"]) as server:
        assert server.model_config("policy") == {
            "model_name": "policy",
            "litellm_params": {"model": "hosted_vllm/org/model", "api_base": f"http://127.0.0.1:{server.port}/v1"},
        }
        async with aiohttp.ClientSession() as http, http.get(f"{server.url}/models") as response:
            assert response.status == 200
        assert len(running(tmp_path)) == 2
    assert running(tmp_path) == [], "its children too, also one that does not listen"


async def test_an_adapter_is_served_beside_its_base(command: list[str], tmp_path: Path) -> None:
    adapter = tmp_path / "lora=1"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"r": 12, "base_model_name_or_path": "org/base"}))
    server = VLLMServer(str(adapter), command=[*command, "--die"])
    with pytest.raises(VLLMFailed) as caught:
        await server.start()
    served = json.dumps({"name": str(adapter), "path": str(adapter)})
    assert f"--model org/base --enable-lora --max-lora-rank 16 --lora-modules {served} --host" in str(caught.value)
    assert server.model_config("policy")["litellm_params"]["model"] == f"hosted_vllm/{adapter}"


async def test_what_is_told_to_vllm_wins_over_what_we_tell_it(command: list[str]) -> None:
    server = VLLMServer("m", command=[*command, "--die"], arguments=["--tool-call-parser=mistral"])
    with pytest.raises(VLLMFailed, match="ended with status 1 before it answered; it said last:") as caught:
        await server.start()
    message = str(caught.value)
    assert "there is no such model" in message
    assert "--logprobs-mode processed_logprobs --enable-auto-tool-choice --tool-call-parser=mistral" in message


async def test_one_that_never_answers_is_given_up(tmp_path: Path) -> None:
    silent = [sys.executable, "-c", "import time; print('loading', flush=True); time.sleep(600)"]
    with pytest.raises(VLLMFailed, match=r"(?s)did not answer within 4 s.*loading"):
        await VLLMServer("m", command=silent, start_seconds=4).start()


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("/no/python", "/no/python cannot be started: No such file"),
        (sys.executable, r"vllm is not installed in the environment of .*: --python$"),
    ],
)
async def test_an_environment_without_vllm_is_told(python: str, words: str) -> None:
    with pytest.raises(VLLMFailed, match=words):
        await VLLMServer("m", python=python).start()


@pytest.mark.parametrize(
    ("text", "words"),
    [("no", r"adapter_config.json is no JSON"), ('{"r": 8}', "has no 'base_model_name_or_path'; write it there")],
)
async def test_an_adapter_that_cannot_be_served_is_told(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(VLLMFailed, match=words):
        await VLLMServer(str(tmp_path)).start()


async def test_one_that_ends_by_itself_is_told(command: list[str], tmp_path: Path) -> None:
    async with VLLMServer("m", command=command, grace_seconds=1) as server:
        os.kill(running(tmp_path)[0], signal.SIGKILL)
        with pytest.raises(VLLMFailed, match="vLLM ended with status -9"):
            await asyncio.wait_for(server.wait(), 15)
    wait_until_gone(tmp_path)


@pytest.fixture
def owner(command: list[str], tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    code = (
        "import asyncio, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background a shell has it ignored\n"
        "from lightning_tokens.vllm import VLLMServer\n"
        "async def main():\n"
        f"    async with VLLMServer('m', command={command!r}, grace_seconds=1) as server:\n"
        "        print('ready', flush=True)\n"
        "        await server.wait()\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_it_ends_with_the_process_that_started_it(
    owner: "subprocess.Popen[bytes]", tmp_path: Path, number: int
) -> None:
    assert len(running(tmp_path)) == 2
    owner.send_signal(number)
    owner.wait(15)
    wait_until_gone(tmp_path)


def test_the_command_says_what_went_wrong_in_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(vllm, ["m", "--python", "/no/python", "--max-model-len", "9"])
    assert result.exit_code == 1
    assert result.output.startswith("Error: /no/python cannot be started")


@pytest.mark.parametrize("said", [["m"], ["serve", "m"]])
def test_serve_may_be_said_before_the_model(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Any]] = []

    def refuse(model: str, **options: Any) -> None:
        asked.append((model, options["arguments"]))
        raise SystemExit(3)

    monkeypatch.setattr("lightning_tokens.vllm.VLLMServer", refuse)
    result = CliRunner().invoke(vllm, [*said, "--port", "0", "--max-model-len", "9"])
    assert result.exit_code == 3
    assert asked == [("m", ("--max-model-len", "9"))]
