"""Runs compared with each other on the live page and in reports."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import aiohttp
from lightning_viewer.live import Live
from live_stores import served, two_runs


async def test_two_runs_are_compared(tmp_path: Path) -> None:
    before, after = await two_runs(tmp_path)
    async with served(Live(folder=after, root=tmp_path)) as url, aiohttp.ClientSession() as session:
        async with session.get(f"{url}/ui/runs") as answer:
            assert [each["id"] for each in await answer.json()] == [before.run_id]
        async with session.get(f"{url}/ui/compare?run={before.run_id}") as answer:
            found = await answer.json()
        assert (found["better"], found["worse"], found["same"], found["changed"]) == (2, 0, 1, 2)
        assert [each["input"] for each in found["samples"]] == [1, 2]
        async with session.get(f"{url}/ui/compare?run=run-none") as answer:
            assert answer.status == 404
        [listed] = (await (await session.get(f"{url}/ui/rollouts?limit=1")).json())["rollouts"]
        async with session.post(f"{url}/ui/rollouts/{listed['id']}/cancel") as answer:
            assert answer.status == 403


async def test_only_runs_of_the_same_folder_are_compared(tmp_path: Path) -> None:
    _, shown = await two_runs(tmp_path / "runs")
    other, _ = await two_runs(tmp_path / "others")
    async with served(Live(folder=shown, root=tmp_path / "runs")) as url, aiohttp.ClientSession() as session:
        for given in (str(other.path), f"../others/{other.run_id}", "/etc", ""):
            async with session.get(f"{url}/ui/compare", params={"run": given}) as answer:
                assert (answer.status, (await answer.json())["error"]) == (404, "NotFound"), given


async def test_a_report_of_two_runs_compares_them(tmp_path: Path) -> None:
    before, after = await two_runs(tmp_path)
    target = tmp_path / "both.html"
    command = [sys.executable, "-m", "lightning_core", "report", after.run_id, before.run_id]
    command += ["--runs-dir", str(tmp_path), "-o", str(target)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    page = await asyncio.to_thread(target.read_text)
    told = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert (told["compared"]["better"], told["compared"]["same"]) == (2, 1)
