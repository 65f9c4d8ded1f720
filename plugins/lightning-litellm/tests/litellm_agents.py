"""An agent that calls a proxy."""

from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from lightning_proxy import LLMProxy

from lightning_core.types import Span


async def status_of(call: Any) -> int:
    """Make a call, and return the status of its answer, which is read."""
    async with call as response:
        await response.read()
        return int(response.status)


class Agent:
    """Calls a proxy in front of an engine, for one attempt."""

    def __init__(self, http: aiohttp.ClientSession, proxy: LLMProxy, rollout: Any) -> None:
        self._http = http
        self.ids = (rollout.rollout_id, rollout.attempt.attempt_id)
        self.proxy = proxy
        self.base = proxy.as_resource(*self.ids, model="small").endpoint

    def post(self, path: str, **fields: Any) -> Any:
        return self._http.post(f"{self.base}{path}", json={"model": "small", **fields})

    def chat(self, **fields: Any) -> Any:
        return self.post("/chat/completions", **{"messages": [{"role": "user", "content": "hi"}], **fields})

    async def span(self) -> Span:
        await self.proxy.flush(*self.ids, end=False)
        assert self.proxy.store is not None
        (span,) = await self.proxy.store.query_spans(*self.ids)
        return span


MakeAgent = Callable[..., Awaitable[Agent]]
