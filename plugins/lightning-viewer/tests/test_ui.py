"""`agl ui`."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from lightning_http.auth import Keys
from lightning_http.server import LightningStoreServer
from live_stores import KEY, SECONDS, agent, next_event, trained

from lightning_core.store import LightningStore


@asynccontextmanager
async def agl_ui(*arguments: str) -> AsyncIterator[str]:
    """Run `agl ui` during the block, and end it as Ctrl-C does."""
    command = [sys.executable, "-m", "lightning_core", "ui", *arguments]
    environment = {name: each for name, each in os.environ.items() if name != "AGL_KEY"}
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60.0):
            line = (await process.stdout.readline()).decode()
        yield line.partition(" at ")[2].partition("/ (")[0]
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(SECONDS):
            _, errors = await process.communicate()
        assert (process.returncode, errors) == (0, b"")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_agl_ui_serves_a_run_until_ctrl_c(tmp_path: Path) -> None:
    await trained(agent, tmp_path, [1, 0])
    async with (
        agl_ui("--runs-dir", str(tmp_path)) as url,
        aiohttp.ClientSession() as session,
        session.get(f"{url}/ui/run") as answer,
    ):
        assert (await answer.json())["counts"]["succeeded"] == 2


async def test_the_copy_is_removed_when_the_terminal_is_closed(tmp_path: Path) -> None:
    await trained(agent, tmp_path / "runs", [1, 0])
    copies = tmp_path / "copies"
    copies.mkdir()
    command = [sys.executable, "-m", "lightning_core", "ui", "--runs-dir", str(tmp_path / "runs")]
    environment = {**os.environ, "TMPDIR": str(copies)}
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    async with asyncio.timeout(60.0):
        await process.stdout.readline()
        assert len(list(copies.iterdir())) == 1
        process.send_signal(signal.SIGHUP)
        await process.wait()
    assert list(copies.iterdir()) == []


async def test_agl_ui_shows_a_served_store_and_acts_on_it(store: LightningStore) -> None:
    [waiting] = await store.query_rollouts(status_in=["queuing"])
    async with (
        LightningStoreServer(store, key=KEY) as server,
        agl_ui("--store", server.url, "--key", KEY) as url,
        aiohttp.ClientSession(headers={"authorization": f"Bearer {KEY}"}) as session,
        session.get(f"{url}/ui/events?after=1") as events,
    ):
        await store.enqueue_rollout({"question": "new"})
        await next_event(events, after=1)
        async with session.get(f"{url}/ui/rollouts") as answer:
            assert (await answer.json())["all"] == 8
        async with session.post(f"{url}/ui/rollouts/{waiting.rollout_id}/cancel") as answer:
            assert (await answer.json())["status"] == "cancelled"
    [cancelled] = await store.query_rollouts(status_in=["cancelled"])
    assert cancelled.rollout_id == waiting.rollout_id


async def test_agl_ui_with_a_key_asks_for_that_key_on_this_machine_too(store: LightningStore) -> None:
    [waiting] = await store.query_rollouts(status_in=["queuing"])
    async with (
        LightningStoreServer(store, key=KEY) as server,
        agl_ui("--store", server.url, "--key", KEY) as url,
        aiohttp.ClientSession() as session,
    ):
        async with session.get(url) as answer:
            assert answer.status == 200
        for path in ("run", "rollouts", "events"):
            async with session.get(f"{url}/ui/{path}") as answer:
                assert (answer.status, (await answer.json())["error"]) == (401, "AccessDenied"), path
        async with session.post(f"{url}/ui/rollouts/{waiting.rollout_id}/cancel") as answer:
            assert answer.status == 401
        of_attempt = Keys(KEY).mint("run-of-last-week", "ro-x", "at-x", 0.0, expires=False)
        headers = {"authorization": f"Bearer {of_attempt}"}
        async with session.get(f"{url}/ui/rollouts/{waiting.rollout_id}", headers=headers) as answer:
            assert (answer.status, (await answer.json())["error"]) == (403, "AccessDenied")
        async with session.post(f"{url}/ui/rollouts/{waiting.rollout_id}/cancel", headers=headers) as answer:
            assert answer.status == 403
    assert list(await store.query_rollouts(status_in=["queuing"])) == [waiting]


def test_agl_ui_on_an_address_of_others_needs_a_key(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lightning_core", "ui", "--runs-dir", str(tmp_path), "--host", "0.0.0.0"]
    environment = {name: each for name, each in os.environ.items() if name != "AGL_KEY"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)
    assert done.returncode == 2
    assert "so the page needs a key: give --key or AGL_KEY" in done.stderr
