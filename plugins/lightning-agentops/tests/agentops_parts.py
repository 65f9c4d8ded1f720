"""What the tests share."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from lightning_core.adapter import ModelCall, read_model_calls
from lightning_core.store import LightningStore
from lightning_core.tracer import Trace, Tracer
from lightning_core.types import Span

USER: Any = [{"role": "user", "content": "hi"}]
CALL: dict[str, Any] = {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
CHAT = "openai.chat.completion"


@dataclass
class Attempt:
    """An attempt to trace, and what the store has of it."""

    store: LightningStore
    rollout_id: str
    attempt_id: str

    @asynccontextmanager
    async def traced(self, tracer: Tracer) -> AsyncIterator[Trace]:
        """Trace it in the block."""
        async with tracer.trace_context(
            store=self.store, rollout_id=self.rollout_id, attempt_id=self.attempt_id
        ) as trace:
            yield trace

    async def spans(self) -> Sequence[Span]:
        return await self.store.query_spans(self.rollout_id, self.attempt_id)

    async def chats(self) -> list[Span]:
        return [span for span in await self.spans() if span.name == CHAT]

    async def calls(self) -> list[ModelCall]:
        return read_model_calls(await self.spans())


async def begin(store: LightningStore) -> Attempt:
    """Begin an attempt of a new rollout."""
    started = await store.start_rollout({})
    return Attempt(store, started.rollout_id, started.attempt.attempt_id)


def said(span: Span, choice: int = 0) -> Any:
    """Return what a chat call's span says of the answer."""
    return span.attributes.get(f"gen_ai.completion.{choice}.content")
