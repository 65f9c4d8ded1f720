"""The property test of two stores, as an author of a store uses it."""

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from lightning_core.store import InMemoryLightningStore, LightningStore
from lightning_core.testing import FakeClock
from lightning_core.testing.store_pair import StorePair

QUICKLY = settings(
    max_examples=30,
    stateful_step_count=30,
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)


class ForgetfulStore(InMemoryLightningStore):
    async def dequeue_many_rollouts(self, *, request_id: str | None = None, **kwargs: Any) -> Any:
        return await super().dequeue_many_rollouts(**kwargs)


class MemoryAndForgetful(StorePair):
    def make_store(self, *, clock: FakeClock, run_id: str, lease_seconds: float) -> LightningStore:
        return ForgetfulStore(clock=clock, run_id=run_id, lease_seconds=lease_seconds)


def test_a_store_that_forgets_which_requests_it_answered_fails() -> None:
    with pytest.raises(AssertionError):
        run_state_machine_as_test(MemoryAndForgetful, settings=QUICKLY)
