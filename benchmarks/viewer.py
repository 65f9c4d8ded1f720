"""What the live page can do: a store of 100,000 rollouts, and a trace of 5,000 spans, in Chromium; a line a figure.

The store is in memory, in the process that serves the page. A page has to be painted within 300 ms, and a change seen
within 500 ms. Without Chromium nothing is measured.
"""

import asyncio
import shutil
import statistics
import time

from lightning_http.server import LightningStoreServer
from playwright.async_api import Page, async_playwright

from lightning_core import PromptTemplate
from lightning_core.store import InMemoryLightningStore, LightningStore
from lightning_core.types import AttemptedRollout, EnqueueRolloutRequest, Span

ROLLOUTS = 100_000
AT_ONCE = 1_000
SAMPLES = 500
SPANS = 5_000
CHANGES = 10
TIMES = 5

PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def span(rollout: AttemptedRollout, name: str, attributes: dict[str, str | float], at: float) -> Span:
    return Span.from_attributes(
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        sequence_id=0,
        name=name,
        attributes=attributes,
        start_time=at,
        end_time=at + 0.5,
    )


def reward(rollout: AttemptedRollout, value: float) -> Span:
    named: dict[str, str | float] = {
        "agentlightning.reward.0.name": "primary",
        "agentlightning.reward.0.value": value,
    }
    return span(rollout, "agentlightning.annotation", named, 1.0)


async def fill(store: LightningStore) -> str:
    """Fill a store; return the id of the rollout with a long trace."""
    versions = [await store.add_resources({"main": PromptTemplate(template=f"prompt {n}")}) for n in range(20)]
    long = ""
    for first in range(0, ROLLOUTS, AT_ONCE):
        await store.enqueue_many_rollouts(
            [
                EnqueueRolloutRequest(
                    input={"question": f"What is {n % SAMPLES} plus {n % 7}, and why?"},
                    mode="val" if n % 3 else "train",
                    resources_id=versions[n * len(versions) // ROLLOUTS].resources_id,
                )
                for n in range(first, first + AT_ONCE)
            ]
        )
        for n, rollout in enumerate(await store.dequeue_many_rollouts(limit=AT_ONCE, worker_id="worker-1")):
            if not long:
                long = rollout.rollout_id
                await store.add_many_spans([span(rollout, f"step {n}", {"n": n}, 1.0 + n / 10) for n in range(SPANS)])
            await store.add_span(reward(rollout, (n * 7 % 10) / 10))
            await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, "succeeded")
    return long


async def opened(page: Page, url: str, words: str) -> tuple[float, float]:
    """Open a page; return the milliseconds to its first paint, and until it shows some words."""
    await page.goto("about:blank")
    began = time.perf_counter()
    await page.goto(url)
    await page.wait_for_function("words => document.body.innerText.includes(words)", arg=words)
    shown = (time.perf_counter() - began) * 1000
    painted = await page.wait_for_function(PAINTED)
    return await painted.json_value(), shown


async def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("viewer: there is no Chromium")
        return
    store = InMemoryLightningStore()
    long = await fill(store)
    async with LightningStoreServer(store, key="") as server, async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1280, "height": 900})
        pages = {
            "run": f"{ROLLOUTS:,} succeeded",
            "rollouts": f"of {ROLLOUTS:,} rollouts",
            "prompts?version=v2": "Sample by sample",
            f"rollout?id={long}": "step 10",
        }
        _, first = await opened(page, f"{server.url}/#/run", pages["run"])
        print(f"viewer: the first page of a store of {ROLLOUTS:,} rollouts is there after {first:,.0f} ms")
        for name, words in pages.items():
            took = [await opened(page, f"{server.url}/#/{name}", words) for _ in range(TIMES)]
            paint, shown = (statistics.median(each) for each in zip(*took, strict=True))
            title = f"trace of {SPANS:,} spans" if name.startswith("rollout?") else f"page of {name.partition('?')[0]}"
            print(f"viewer: {title}: first paint {paint:,.0f} ms, shown after {shown:,.0f} ms")
        for name in ("run", "rollouts"):
            await opened(page, f"{server.url}/#/{name}", "succeeded")
            seen = []
            for _ in range(CHANGES):
                total = (await store.query_rollouts(limit=1)).total + 1
                waits = total - ROLLOUTS
                words = f"{waits:,} unfinished" if name == "run" else f"of {total:,} rollouts"
                began = time.perf_counter()
                await store.enqueue_rollout({"question": "new"})
                await page.wait_for_function("words => document.body.innerText.includes(words)", arg=words)
                seen.append((time.perf_counter() - began) * 1000)
                await asyncio.sleep(0.5)
            print(f"viewer: a change is seen on the page of {name} after {statistics.median(seen):,.0f} ms")
        await browser.close()
    await store.aclose()


if __name__ == "__main__":
    asyncio.run(main())
