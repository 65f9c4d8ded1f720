"""A browser for tests: Chromium, driven by its own protocol."""

import asyncio
import itertools
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
SECONDS = 30.0

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")

_SHOWS = """
new Promise((resolve) => {
  const holds = () => %s;
  if (holds()) return resolve(true);
  const watching = new MutationObserver(() => holds() && (watching.disconnect(), resolve(true)));
  watching.observe(document, { subtree: true, childList: true, characterData: true, attributes: true });
})
"""


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self.errors: list[str] = []
        """What the page wrote to its console as an error, or raised."""

    async def send(self, method: str, **parameters: Any) -> Any:
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            told = await self._socket.receive_json(timeout=SECONDS)
            if told.get("id") == number:
                assert "error" not in told, told
                return told["result"]
            if told.get("method") == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(told["params"]["exceptionDetails"])[:500])

    async def evaluate(self, expression: str) -> Any:
        found = await self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def open(self, url: str) -> None:
        await self.send("Page.navigate", url=url)

    async def wait_for(self, words: str, *, gone: bool = False) -> None:
        """Return when the page shows these words, or does not any more."""
        held = (
            f"document.body?.innerText.replace(/\\s+/g, ' ').includes({json.dumps(words)}) === {json.dumps(not gone)}"
        )
        await self.wait_until(held)

    async def wait_until(self, condition: str) -> None:
        """Return when an expression holds in the page."""
        async with asyncio.timeout(SECONDS):
            while True:
                try:
                    await self.evaluate(_SHOWS % condition)
                    return
                except AssertionError as exc:  # the page was left for another while this was asked
                    if "navigat" not in str(exc) and "destroyed" not in str(exc) and "context" not in str(exc):
                        raise

    async def text(self) -> str:
        return " ".join((await self.evaluate("document.body.innerText")).split())


@asynccontextmanager
async def browser(profile: Path, *, width: int = 1280, height: int = 900) -> AsyncIterator[Page]:
    """Open a browser with one tab during the block."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
    process = await asyncio.create_subprocess_exec(
        str(CHROMIUM),
        *options,
        f"--window-size={width},{height}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(SECONDS), aiohttp.ClientSession() as session:
            address = ""
            while "DevTools listening on " not in address:
                address = (await process.stderr.readline()).decode()
                assert address, "Chromium has ended"
            port = address.partition("127.0.0.1:")[2].partition("/")[0]
        draining = asyncio.create_task(process.stderr.read())
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                target = next(each for each in await answer.json() if each["type"] == "page")
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                await page.send("Runtime.enable")
                await page.send("Page.enable")
                yield page
        draining.cancel()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
