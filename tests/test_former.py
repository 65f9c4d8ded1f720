"""Without lightning-legacy, an older name, path or form says to install it."""

import importlib
import operator
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import lightning_core as agl
from lightning_core import former
from lightning_core.errors import NeedsLegacy

LEGACY = r"lightning-legacy, which is not installed. Install it from"


@pytest.fixture(autouse=True)
def no_legacy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(former, "find_former", lambda: None)


@agl.rollout
def half(task: str) -> float:
    return 0.5


def test_a_path_of_former_times() -> None:
    with pytest.raises(ImportError, match=rf"there is no lightning_core.tools; .*{LEGACY}"):
        importlib.import_module("lightning_core.tools")


def test_a_name_of_a_module() -> None:
    # Another test of this process may have had lightning-legacy put it there.
    vars(importlib.import_module("lightning_core.store.base")).pop("is_queuing", None)
    with pytest.raises(ImportError, match=rf"there is no lightning_core.store.is_slow; .*{LEGACY}"):
        exec("from lightning_core.store import is_slow")
    with pytest.raises(ImportError, match=rf"there is no lightning_core.store.base.is_queuing; .*{LEGACY}"):
        exec("from lightning_core.store.base import is_queuing")
    assert not hasattr(importlib.import_module("lightning_core.store.base"), "is_slow")


@pytest.mark.parametrize("name", ["tools", "types.outline"])
def test_an_attribute_of_a_package(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"there is no lightning_core.{name}; .*{LEGACY}"):
        operator.attrgetter(name)(agl)


def test_a_store_whose_methods_lack_parameters() -> None:
    with pytest.raises(ImportError, match=r"Old.dequeue_rollout takes no wait_seconds, request_id; add that .*legacy"):

        class Old(agl.InMemoryLightningStore):
            async def dequeue_rollout(self, worker_id: str | None = None) -> Any:  # type: ignore[override]
                return None


def test_a_strategy_that_is_not_a_coroutine_function() -> None:
    class Plain(agl.ExecutionStrategy):
        def execute(self, algorithm: Any, runner: Any, store: Any) -> None:  # type: ignore[override]
            raise AssertionError("it is not called")

    with pytest.raises(ImportError, match=r"Plain.execute is a plain function; write it as `async def`. .*legacy"):
        agl.Trainer(algorithm="baseline", strategy=Plain()).fit(half, ["a"])


def test_a_tracer_that_yields_something_else() -> None:
    class Other(agl.Tracer):
        @asynccontextmanager
        async def trace_context(self, name: str | None = None, **ids: Any) -> AsyncIterator[None]:  # type: ignore[override]
            yield

    ended: list[Any] = []

    class Ends(agl.Hook):
        async def on_rollout_end(self, *, rollout: agl.Rollout, **others: Any) -> None:
            ended.append(rollout)

    with pytest.raises(NeedsLegacy, match=r"^Other.trace_context yields None; yield a Trace. .*legacy"):
        agl.Trainer(algorithm="baseline", tracer=Other(), hooks=Ends()).fit(half, ["a"])
    assert ended == []  # it is not a fault of the rollouts
