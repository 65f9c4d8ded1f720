"""`agl serve proxy` as a person uses it."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner
from lightning_http import LightningStoreServer
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import status_of

from lightning_core.cli import agl
from lightning_core.store import InMemoryLightningStore


def free_port() -> int:
    """A port at which nobody listens just now."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def environment(**variables: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("AGL_")} | variables


@contextmanager
def serving(*arguments: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "lightning_core", "proxy", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**variables),
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("proxy of "), process.communicate()
        yield process, line.split()[-1]
    finally:
        process.kill()
        process.communicate()


def refused(*arguments: str) -> str:
    """Run the command, which is wrong, in this process; return the last line that it says."""
    done = CliRunner(env=dict.fromkeys(os.environ.keys() - environment().keys())).invoke(agl, ["proxy", *arguments])
    assert done.exit_code == 2, done.stderr
    return done.stderr.strip().splitlines()[-1]


def config(folder: Path, engine_url: str, more: str = "") -> str:
    path = folder / "models.yaml"
    path.write_text(
        "model_list:\n- model_name: small\n  litellm_params:\n"
        f"    model: hosted_vllm/small\n    api_base: {engine_url}\nport: 0\n{more}"
    )
    return str(path)


async def test_calls_are_recorded_in_the_store_of_another_process(
    tmp_path: Path, engine: FakeEngine, http: aiohttp.ClientSession
) -> None:
    store = InMemoryLightningStore()
    async with LightningStoreServer(store, key="secret") as server:
        rollout = await store.start_rollout({})
        started = serving(config(tmp_path, engine.url), "--store", server.url, AGL_KEY="secret")
        process, url = await asyncio.to_thread(started.__enter__)
        try:
            headers = {"authorization": "Bearer secret"}
            base = f"{url}/rollout/{rollout.rollout_id}/attempt/{rollout.attempt.attempt_id}"
            body = {"model": "small", "messages": [{"role": "user", "content": "hi"}]}
            async with http.post(f"{base}/v1/chat/completions", json=body, headers=headers) as response:
                assert response.status == 200, await response.text()
            assert await status_of(http.post(f"{base}/flush", headers=headers)) == 204
            (span,) = await store.query_spans(rollout.rollout_id)
            assert span.name == "chat small"
            process.send_signal(signal.SIGTERM)
            _, errors = await asyncio.to_thread(process.communicate, timeout=20)
            assert (process.returncode, errors) == (0, "")
        finally:
            await asyncio.to_thread(started.__exit__, None, None, None)


def test_without_a_store_it_is_a_proxy_for_anybody_on_this_machine(tmp_path: Path) -> None:
    with serving(config(tmp_path, "http://127.0.0.1:1/v1", "allow_unattributed: true\n")) as (process, url):
        with urllib.request.urlopen(f"{url}/v1/models", timeout=20) as answer:
            assert b"small" in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


async def test_a_store_that_is_not_there_yet_is_waited_for_and_named(tmp_path: Path) -> None:
    address = "127.0.0.1", free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-m", "lightning_core", "proxy", config(tmp_path, "http://127.0.0.1:1/v1")),
        *("--store", f"http://{address[0]}:{address[1]}"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(AGL_KEY="secret"),
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        async with asyncio.timeout(25):  # the store is given 30 s
            line = (await process.stderr.readline()).decode()
            assert line == f"waiting for the store at http://{address[0]}:{address[1]}, for 30 s at most\n"
            async with LightningStoreServer(InMemoryLightningStore(), *address, key="secret"):
                assert (await process.stdout.readline()).startswith(b"proxy of small at http://")
                process.terminate()
                assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def test_a_store_that_is_not_there_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_proxy.commands._STORE_SECONDS", 0.2)
    url = f"http://127.0.0.1:{free_port()}"
    told = refused(config(tmp_path, "http://127.0.0.1:1/v1"), "--store", url)
    assert told.startswith(f"Error: the store at {url} was out of reach for ")
    assert told.endswith(
        "; is it served there, as by 'agl serve store' or a run, and can its address be reached from here? --store "
        "names another"
    )


async def test_a_store_that_wants_another_key_is_one_error(tmp_path: Path) -> None:
    async with LightningStoreServer(InMemoryLightningStore(), key="secret") as server:
        path = config(tmp_path, "http://127.0.0.1:1/v1")
        told = await asyncio.to_thread(refused, path, "--store", server.url, "--key", "another")
    assert told.startswith(f"Error: the store at {server.url} refuses: ")
    assert told.endswith("; give the key of the store's server, with AGL_KEY or --key")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("", "the proxy has no store to record calls in"),
        ("litellm_settings: {}\n", "models.yaml:7: the proxy has no option 'litellm_settings'"),
        ("allow_unattributed: true\nworkers: none\n", "workers is 'none'; it has to be a whole number"),
        ("allow_unattributed: true\nworkers: 2\n", "docs/proxy.md, 'More than one proxy'"),
        ("budjet: {usd: 1}\n", "Did you mean 'budget'?"),
        ("budget: {euro: 1}\n", "budget has no option 'euro'"),
        ("allow_unattributed: true\nhost: 0.0.0.0\n", "the proxy needs a key"),
    ],
)
def test_a_wrong_config_is_one_line(tmp_path: Path, more: str, message: str) -> None:
    assert message in refused(config(tmp_path, "http://127.0.0.1:1/v1", more))
