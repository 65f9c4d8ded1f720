"""The live page in a browser."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from browsers import expect, hides, shows, tab, tabs, text_of
from lightning_http.server import LightningStoreServer
from lightning_viewer.live import Live
from live_stores import HOSTILE, KEY, SECONDS, prompt, served, talk, two_runs

from lightning_core.store import InMemoryLightningStore, LightningStore


async def test_pages_show_a_store_and_follow_it(server: LightningStoreServer, store: LightningStore) -> None:
    async with tab() as page:
        await page.goto(f"{server.url}/#/rollouts")
        await shows(page, "7 of 7 rollouts")
        assert HOSTILE in await text_of(page)
        await store.enqueue_rollout({"question": "came while it was open"})
        await shows(page, "8 of 8 rollouts")
        await shows(page, "came while it was open")
        await page.goto(f"{server.url}/#/rollouts?status=queuing")
        await shows(page, "2 of 8 rollouts")
        await page.goto(f"{server.url}/#/run")
        await shows(page, "6 succeeded")
        await page.goto(f"{server.url}/#/prompts?version=v2")
        await shows(page, "1 better, 1 worse, 1 the same, of 3")
        await page.goto(f"{server.url}/#/workers")
        await shows(page, "0 of 1 busy")
        await store.dequeue_rollout("worker-2")
        await shows(page, "1 of 2 busy")
        await page.goto(f"{server.url}/#/settings")
        await shows(page, "A store does not know the config of its run.")
        assert await page.evaluate("document.title") == store.run_id


async def test_a_trace_shows_tokens_and_leads_to_a_span(server: LightningStoreServer, store: LightningStore) -> None:
    rollout_id, span_id = await talk(store)
    async with tab() as page:
        await page.goto(f"{server.url}/#/rollout?id={rollout_id}")
        await shows(page, HOSTILE)
        await page.get_by_label("tokens").check()
        await shows(
            page, "Training row 1: the 3 tokens of its prompt are masked, the 2 tokens of the answer are trained on"
        )
        marks = "[...document.querySelectorAll('.ids span')].map((each) => each.className + ' ' + each.innerText)"
        assert await page.evaluate(marks) == ["masked 1", "masked 2", "masked 3", "trained 4", "trained 5"]
        await page.get_by_label("messages").uncheck()
        await hides(page, "what is asked")
        await page.goto(f"{server.url}/#/rollout?id={rollout_id}&span={span_id}")
        await shows(page, "Copy it and what is below")
        assert "depth 3" in await text_of(page)


@pytest.mark.parametrize("shape", ["wide", "long"])
async def test_the_lineage_of_sixty_versions_leads_from_one_to_another(
    server: LightningStoreServer, store: LightningStore, shape: str
) -> None:
    first, parent = await store.query_resources(limit=2)
    for number in range(58):
        made = await store.add_resources(prompt(f"prompt {number}"), parent_id=parent.resources_id)
        parent = made if shape == "long" else first
    async with tab() as page:
        await page.goto(f"{server.url}/#/prompts?version=v60")
        await shows(page, "Sample by sample against " + ("v59" if shape == "long" else "v1") + ", its parent")
        await expect(page.locator(".lineage a")).to_have_count(60)
        box = await page.locator(".lineage").bounding_box()
        assert box is not None
        assert box["width"] < 1200
        assert box["height"] < 300
        await page.locator(".lineage a[aria-label^='v3,']").focus()
        await page.keyboard.press("Enter")
        await shows(page, "made from v2")


async def test_runs_are_compared_in_a_browser(tmp_path: Path) -> None:
    _, after = await two_runs(tmp_path)
    async with served(Live(folder=after, root=tmp_path)) as url, tab() as page:
        await page.goto(f"{url}/#/compare")
        await shows(page, "2 better, 0 worse, 1 the same, of 3")
        await page.goto(f"{url}/#/settings")
        await shows(page, "Kept in this browser.")
        await page.get_by_label("Theme").select_option("dark")
        await expect(page.locator("body")).to_have_css("background-color", "rgb(18, 20, 26)")
        await page.goto(f"{url}/#/run")
        await page.reload()
        await expect(page.locator("body")).to_have_css("background-color", "rgb(18, 20, 26)")


async def test_a_rollout_is_cancelled_from_its_page(server: LightningStoreServer, store: LightningStore) -> None:
    [waiting] = await store.query_rollouts(status_in=["queuing"])
    async with tab() as page:
        await page.goto(f"{server.url}/#/rollout?id={waiting.rollout_id}")
        await shows(page, "Queue again")
        page.on("dialog", lambda dialog: dialog.accept())
        await page.get_by_role("button", name="Cancel").click()
        await shows(page, "cancelled")
        assert "Queue again" not in await text_of(page)
    [cancelled] = await store.query_rollouts(status_in=["cancelled"])
    assert cancelled.rollout_id == waiting.rollout_id


async def test_a_lost_connection_is_shown_and_comes_back(store: LightningStore) -> None:
    first = LightningStoreServer(store, key="")
    await first.start()
    port = int(first.url.rpartition(":")[2])
    async with tab() as page:
        await page.goto(f"{first.url}/#/rollouts")
        await shows(page, "7 of 7 rollouts")
        await first.stop()
        await shows(page, "The connection is lost.")
        await store.enqueue_rollout({"question": "came meanwhile"})
        async with LightningStoreServer(store, key="", port=port):
            await shows(page, "8 of 8 rollouts")
            await hides(page, "The connection is lost.")


async def test_a_hidden_tab_holds_no_connection(store: LightningStore, monkeypatch: pytest.MonkeyPatch) -> None:
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
    async with LightningStoreServer(store, key="") as server, tab() as page:
        await page.goto(f"{server.url}/#/rollouts")
        await store.enqueue_rollout({"question": "came while it was seen"})
        await shows(page, "came while it was seen")
        await page.evaluate(turn.format("hidden"))
        async with asyncio.timeout(SECONDS):
            await ended.wait()
        await store.enqueue_rollout({"question": "came meanwhile"})
        assert "The connection is lost." not in await text_of(page)
        await page.evaluate(turn.format("visible"))
        await shows(page, "came meanwhile")
        await store.enqueue_rollout({"question": "came later"})
        await shows(page, "came later")


async def test_of_many_tabs_one_listens_and_all_follow(store: LightningStore, monkeypatch: pytest.MonkeyPatch) -> None:
    streams: list[Live] = []
    changes = Live.changes

    async def watched(live: Live, after: int) -> AsyncGenerator[dict[str, Any]]:
        streams.append(live)
        async for each in changes(live, after):
            yield each

    monkeypatch.setattr(Live, "changes", watched)
    async with LightningStoreServer(store, key="") as server, tabs() as context:
        pages = [await context.new_page() for _ in range(8)]
        for page in pages:
            await page.goto(f"{server.url}/#/rollouts")
            await shows(page, "7 of 7 rollouts")
        await store.enqueue_rollout({"question": "came while all were open"})
        for page in pages:
            await shows(page, "came while all were open")
        assert len(streams) == 1
        await pages[0].close()
        await store.enqueue_rollout({"question": "came when another listened"})
        for page in pages[1:]:
            await shows(page, "came when another listened")


async def test_a_page_asks_for_the_key_of_its_store(store: LightningStore) -> None:
    async with LightningStoreServer(store, key=KEY) as server, tab() as page:
        await page.goto(f"{server.url}/#/rollouts")
        await shows(page, "This store wants a key")
        await page.get_by_label("Key").fill("wrong")
        await page.get_by_role("button", name="Open").click()
        await shows(page, "this is not a key of this store")
        await page.get_by_label("Key").fill(KEY)
        await page.keyboard.press("Enter")
        await shows(page, "7 of 7 rollouts")


async def test_an_empty_store_says_that_nothing_is_there_yet() -> None:
    store = InMemoryLightningStore()
    async with LightningStoreServer(store, key="") as server, tab(viewport={"width": 390, "height": 800}) as page:
        await page.goto(server.url)
        await shows(page, "No rollout has given a reward yet.")
        for name, words in (
            ("rollouts", "There are no rollouts yet."),
            ("prompts", "There are no resources"),
            ("workers", "No worker has asked for work yet."),
        ):
            await page.goto(f"{server.url}/#/{name}")
            await shows(page, words)
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        await store.enqueue_rollout("the first one")
        await page.goto(f"{server.url}/#/rollouts")
        await shows(page, "the first one")
    await store.aclose()
