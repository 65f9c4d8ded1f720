"""Pages in the system's Chromium, for tests. Whoever imports this is skipped where there is none."""

import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("there is no Chromium", allow_module_level=True)
pytest.importorskip("playwright", reason="playwright is not installed")

from playwright.async_api import Page, async_playwright, expect  # noqa: E402

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext

expect.set_options(timeout=30_000)


@asynccontextmanager
async def tabs(**options: Any) -> AsyncIterator["BrowserContext"]:
    """Open a browser during the block; no page of it may raise an error or break its policy.

    Args:
        options: What Playwright's `new_context` takes.
    """
    errors: list[str] = []

    def watch(page: Page) -> None:
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if "Security Policy" in said.text else None)

    async with async_playwright() as driver:
        chromium = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            context = await chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
            context.on("page", watch)
            yield context
        finally:
            await chromium.close()
    assert errors == []


@asynccontextmanager
async def tab(**options: Any) -> AsyncIterator[Page]:
    """Open a browser with one tab during the block; see `tabs`."""
    async with tabs(**options) as context:
        yield await context.new_page()


async def shows(page: Page, *words: str) -> None:
    """Return when the page shows these words, in any place."""
    for each in words:
        await expect(page.locator("#app")).to_contain_text(each, use_inner_text=True)


async def hides(page: Page, *words: str) -> None:
    """Return when the page does not show these words any more."""
    for each in words:
        await expect(page.locator("#app")).not_to_contain_text(each, use_inner_text=True)


async def text_of(page: Page) -> str:
    return re.sub(r"\s+", " ", await page.locator("#app").inner_text())
