"""The live page in a browser."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from chromium import browser, needs_chromium
from lightning_http.server import LightningStoreServer
from lightning_viewer.live import Live
from live_stores import HOSTILE, KEY, SECONDS, prompt, served, talk, two_runs

from lightning_core.store import InMemoryLightningStore, LightningStore


@needs_chromium
async def test_pages_show_a_store_and_follow_it(
    server: LightningStoreServer, store: LightningStore, tmp_path: Path
) -> None:
    async with browser(tmp_path / "profile") as page:
        await page.open(f"{server.url}/#/rollouts")
        await page.wait_for("7 of 7 rollouts")
        assert HOSTILE in await page.text()
        await store.enqueue_rollout({"question": "came while it was open"})
        await page.wait_for("8 of 8 rollouts")
        await page.wait_for("came while it was open")
        await page.open(f"{server.url}/#/rollouts?status=queuing")
        await page.wait_for("2 of 8 rollouts")
        await page.open(f"{server.url}/#/run")
        await page.wait_for("6 succeeded")
        await page.open(f"{server.url}/#/prompts?version=v2")
        await page.wait_for("1 better, 1 worse, 1 the same, of 3")
        await page.open(f"{server.url}/#/workers")
        await page.wait_for("0 of 1 busy")
        await store.dequeue_rollout("worker-2")
        await page.wait_for("1 of 2 busy")
        await page.open(f"{server.url}/#/settings")
        await page.wait_for("A store does not know the config of its run.")
        assert await page.evaluate("document.title") == store.run_id
        assert page.errors == []


@needs_chromium
async def test_a_trace_shows_tokens_and_leads_to_a_span(
    server: LightningStoreServer, store: LightningStore, tmp_path: Path
) -> None:
    rollout_id, span_id = await talk(store)
    async with browser(tmp_path / "profile") as page:
        await page.open(f"{server.url}/#/rollout?id={rollout_id}")
        await page.wait_for(HOSTILE)
        toggle = "[...document.querySelectorAll('.head label')].find((each) => each.innerText.trim() === '{}').click()"
        await page.evaluate(toggle.format("tokens"))
        await page.wait_for(
            "Training row 1: the 3 tokens of its prompt are masked, the 2 tokens of the answer are trained on"
        )
        marks = "[...document.querySelectorAll('.ids span')].map((each) => each.className + ' ' + each.innerText)"
        assert await page.evaluate(marks) == ["masked 1", "masked 2", "masked 3", "trained 4", "trained 5"]
        await page.evaluate(toggle.format("messages"))
        await page.wait_for("what is asked", gone=True)
        await page.open(f"{server.url}/#/rollout?id={rollout_id}&span={span_id}")
        await page.wait_for("Copy it and what is below")
        assert "depth 3" in await page.text()
        assert page.errors == []


@needs_chromium
@pytest.mark.parametrize("shape", ["wide", "long"])
async def test_the_lineage_of_sixty_versions_leads_from_one_to_another(
    server: LightningStoreServer, store: LightningStore, tmp_path: Path, shape: str
) -> None:
    first, parent = await store.query_resources(limit=2)
    for number in range(58):
        made = await store.add_resources(prompt(f"prompt {number}"), parent_id=parent.resources_id)
        parent = made if shape == "long" else first
    async with browser(tmp_path / "profile") as page:
        await page.open(f"{server.url}/#/prompts?version=v60")
        await page.wait_for("Sample by sample against " + ("v59" if shape == "long" else "v1") + ", its parent")
        assert await page.evaluate("document.querySelectorAll('.lineage a').length") == 60
        width, height = await page.evaluate(
            "(() => { const { width, height } = document.querySelector('.lineage').getBoundingClientRect();"
            " return [width, height]; })()"
        )
        assert width < 1200
        assert height < 300
        await page.evaluate(
            "[...document.querySelectorAll('.lineage a')].find((each) => each.ariaLabel.startsWith('v3,'))"
            ".dispatchEvent(new MouseEvent('click', { bubbles: true, cancelable: true }))"
        )
        await page.wait_for("made from v2")
        assert page.errors == []


@needs_chromium
async def test_runs_are_compared_in_a_browser(tmp_path: Path) -> None:
    _, after = await two_runs(tmp_path)
    async with served(Live(folder=after, root=tmp_path)) as url, browser(tmp_path / "profile") as page:
        await page.open(f"{url}/#/compare")
        await page.wait_for("2 better, 0 worse, 1 the same, of 3")
        await page.open(f"{url}/#/settings")
        await page.wait_for("Kept in this browser.")
        await page.evaluate(
            "(() => { const theme = document.querySelector('select'); theme.value = 'dark';"
            " theme.dispatchEvent(new Event('change', { bubbles: true })); })()"
        )
        dark = "getComputedStyle(document.body).backgroundColor === 'rgb(18, 20, 26)'"
        await page.wait_until(dark)
        await page.open(f"{url}/#/run")
        await page.wait_until(dark)
        assert page.errors == []


@needs_chromium
async def test_a_rollout_is_cancelled_from_its_page(
    server: LightningStoreServer, store: LightningStore, tmp_path: Path
) -> None:
    [waiting] = await store.query_rollouts(status_in=["queuing"])
    async with browser(tmp_path / "profile") as page:
        await page.open(f"{server.url}/#/rollout?id={waiting.rollout_id}")
        await page.wait_for("Queue again")
        await page.evaluate("window.confirm = () => true, document.querySelector('button.danger').click()")
        await page.wait_for("cancelled")
        assert "Queue again" not in await page.text()
    [cancelled] = await store.query_rollouts(status_in=["cancelled"])
    assert cancelled.rollout_id == waiting.rollout_id


@needs_chromium
async def test_a_lost_connection_is_shown_and_comes_back(store: LightningStore, tmp_path: Path) -> None:
    first = LightningStoreServer(store, key="")
    await first.start()
    port = int(first.url.rpartition(":")[2])
    async with browser(tmp_path / "profile") as page:
        await page.open(f"{first.url}/#/rollouts")
        await page.wait_for("7 of 7 rollouts")
        await first.stop()
        await page.wait_for("The connection is lost.")
        await store.enqueue_rollout({"question": "came meanwhile"})
        async with LightningStoreServer(store, key="", port=port):
            await page.wait_for("8 of 8 rollouts")
            await page.wait_for("The connection is lost.", gone=True)


@needs_chromium
async def test_a_hidden_tab_holds_no_connection(
    store: LightningStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = asyncio.Event()
    changes = Live.changes

    async def watched(live: Live, after: int) -> AsyncGenerator[dict[str, Any]]:
        told = changes(live, after)
        try:
            async for each in told:
                yield each
        finally:
            await told.aclose()
            ended.set()

    monkeypatch.setattr(Live, "changes", watched)
    turn = (
        "Object.defineProperty(document, 'visibilityState', {{ value: '{}', configurable: true }}),"
        " document.dispatchEvent(new Event('visibilitychange'))"
    )
    async with LightningStoreServer(store, key="") as server, browser(tmp_path / "profile") as page:
        await page.open(f"{server.url}/#/rollouts")
        await store.enqueue_rollout({"question": "came while it was seen"})
        await page.wait_for("came while it was seen")
        await page.evaluate(turn.format("hidden"))
        async with asyncio.timeout(SECONDS):
            await ended.wait()
        await store.enqueue_rollout({"question": "came meanwhile"})
        assert "The connection is lost." not in await page.text()
        await page.evaluate(turn.format("visible"))
        await page.wait_for("came meanwhile")
        await store.enqueue_rollout({"question": "came later"})
        await page.wait_for("came later")
        assert page.errors == []


@needs_chromium
async def test_a_page_asks_for_the_key_of_its_store(store: LightningStore, tmp_path: Path) -> None:
    async with LightningStoreServer(store, key=KEY) as server, browser(tmp_path / "profile") as page:
        await page.open(f"{server.url}/#/rollouts")
        await page.wait_for("This store wants a key")
        type_key = """new Promise((resolve) => {{ const field = document.querySelector('input[type=password]');
            field.value = '{}'; field.dispatchEvent(new Event('input', {{ bubbles: true }}));
            setTimeout(() => resolve(field.form.requestSubmit()), 100); }})"""
        await page.evaluate(type_key.format("wrong"))
        await page.wait_for("this is not a key of this store")
        await page.evaluate(type_key.format(KEY))
        await page.wait_for("7 of 7 rollouts")


@needs_chromium
async def test_an_empty_store_says_that_nothing_is_there_yet(tmp_path: Path) -> None:
    store = InMemoryLightningStore()
    async with LightningStoreServer(store, key="") as server, browser(tmp_path / "profile", width=390) as page:
        await page.open(server.url)
        await page.wait_for("No rollout has given a reward yet.")
        for name, words in (
            ("rollouts", "There are no rollouts yet."),
            ("prompts", "There are no resources"),
            ("workers", "No worker has asked for work yet."),
        ):
            await page.open(f"{server.url}/#/{name}")
            await page.wait_for(words)
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        await store.enqueue_rollout("the first one")
        await page.open(f"{server.url}/#/rollouts")
        await page.wait_for("the first one")
        assert page.errors == []
    await store.aclose()
