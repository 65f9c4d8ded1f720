"""Every page, in light and dark, wide and narrow: as axe-core judges it, and as pictures.

With a folder in the variable AGL_SCREENSHOTS each page is kept there as a picture: `make screenshots`.
"""

import asyncio
import os

import pytest
from browsers import Page, expect, shows, tab
from lightning_viewer.live import Live
from live_stores import served
from runs import make_run

from lightning_core.runs.folder import RunFolder

Axe = pytest.importorskip("axe_playwright_python.async_playwright", reason="axe-playwright-python is not installed").Axe

SCREENSHOTS = os.environ.get("AGL_SCREENSHOTS")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunFolder]:
    root = tmp_path_factory.mktemp("runs")
    return [asyncio.run(make_run(root)) for _ in range(2)]


async def check(page: Page, name: str) -> None:
    """Fail where a page reaches beyond the window, or axe-core finds something serious; keep its picture."""
    if SCREENSHOTS:
        await page.screenshot(path=f"{SCREENSHOTS}/{name}.png", full_page=True)  # which makes the folder
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
    found = (await Axe().run(page)).response["violations"]
    grave = [each for each in found if each["impact"] in ("serious", "critical")]
    told = [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in grave]
    assert told == [], name


@pytest.mark.parametrize(
    ("width", "theme"),
    [(1280, "light"), (390, "dark"), *([(1280, "dark"), (390, "light")] if SCREENSHOTS else [])],
)
async def test_nothing_serious_stands_in_the_way_of_a_reader(runs: list[RunFolder], width: int, theme: str) -> None:
    options = {"viewport": {"width": width, "height": 800}, "color_scheme": theme, "reduced_motion": "reduce"}
    async with served(Live(folder=runs[1], root=runs[1].path.parent)) as url, tab(**options) as page:

        async def look(name: str, *words: str) -> None:
            await shows(page, *words)
            await check(page, f"{name}-{width}-{theme}")

        await page.goto(f"{url}/#/run")
        await look("run", "Reward on validation samples", "LookupError", "Made of")
        await page.goto(f"{url}/#/rollouts")
        await look("rollouts", "60 of 60 rollouts")
        await page.goto(f"{url}/#/rollouts?status=succeeded&order=best")
        await shows(page, "58 of 60 rollouts")  # not the rows of the page before
        await page.locator("td.sample a").first.click()
        await look("trace", "Conversation", "find_order", "reward 1.00")
        await page.get_by_label("tokens", exact=True).check()
        await look("tokens", "Training row 1 goes on: 80 tokens since the answer before are masked")
        await page.get_by_label("tokens", exact=True).uncheck()
        await page.locator("button.span").nth(1).click()
        await expect(page.locator("button.span").nth(1)).to_have_attribute("aria-expanded", "true")
        await check(page, f"span-{width}-{theme}")
        await page.goto(f"{url}/#/rollouts?status=failed")
        await shows(page, "2 of 60 rollouts")  # not the rows of the page before
        await page.locator("td.sample a").first.click()
        await look("failed", "Conversation", "there is no order of customer")
        await page.goto(f"{url}/#/prompts")
        await look("prompts", "Sample by sample")
        await page.goto(f"{url}/#/compare")
        await look("compare", "20 the same")
        await page.goto(f"{url}/#/workers")
        await look("workers", "busy")
        await page.goto(f"{url}/#/settings")
        await look("settings", "Kept in this browser.")
        await page.goto((runs[1].path / "report.html").as_uri())
        await look("report", "Made by Lightning Core.")
