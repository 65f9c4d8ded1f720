"""A backend with nothing but what the port asks for; what a later version adds has a default."""

from typing import Any

import pytest

from lightning_core.errors import StoreError
from lightning_core.store import LightningStore, StoreFacade
from lightning_core.store.backend import StoreBackend
from lightning_core.store.memory import MemoryBackend
from lightning_core.testing import FakeClock
from lightning_core.testing.store.backends import BackendBehaviour
from lightning_core.testing.store.base import begin, span_of
from lightning_core.testing.store.deletion import DeletionBehaviour
from lightning_core.testing.store.requests import RequestBehaviour

PROPERTIES = ("name", "capabilities")
METHODS = (
    *("insert", "get", "replace", "claim", "find", "due", "next_deadline"),
    *("append_spans", "reserve_sequence_ids", "find_spans"),
    *("put_document", "get_document", "latest_key", "list_documents"),
    *("delete_rollouts", "delete_run", "count", "watch", "aclose"),
)


def _method_of_memory(name: str) -> Any:
    return lambda self, *args, **kwargs: getattr(self.memory, name)(*args, **kwargs)


def _property_of_memory(name: str) -> Any:
    return property(lambda self: getattr(self.memory, name))


OlderBackend = type(
    "OlderBackend",
    (StoreBackend,),
    {name: _method_of_memory(name) for name in METHODS} | {name: _property_of_memory(name) for name in PROPERTIES},
)


def make_older() -> StoreBackend:
    backend: StoreBackend = OlderBackend()
    backend.memory = MemoryBackend()  # type: ignore[attr-defined]
    return backend


class TestStoreOverAnOlderBackend(RequestBehaviour, DeletionBehaviour, BackendBehaviour):
    async def make_store(self, *, clock: FakeClock, run_id: str) -> LightningStore:
        return StoreFacade(make_older(), clock=clock, run_id=run_id)


def test_the_port_asks_for_no_more_than_it_did() -> None:
    assert StoreBackend.__abstractmethods__ == {*METHODS, *PROPERTIES}


async def test_content_that_a_backend_cannot_drop_is_refused_by_name() -> None:
    store = StoreFacade(make_older())
    started = await begin(store)
    await store.add_span(span_of(started, attributes={"gen_ai.prompt.0.content": "a secret"}))
    await store.update_rollout(started.rollout_id, status="cancelled")
    with pytest.raises(StoreError, match=r"OlderBackend has no method replace_spans, .* delete the rollouts"):
        await store.drop_content([started.rollout_id])
