"""The MongoDB store and the memory store under the same random calls, reopened now and then."""

import itertools
import os
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from lightning_mongo import MongoLightningStore
from lightning_mongo.testing import Mongod

from lightning_core.store import LightningStore
from lightning_core.testing import FakeClock
from lightning_core.testing.store_pair import RUN_ID, StorePair

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class MongoAndMemory(StorePair):
    uri: ClassVar[str]
    partitions = (f"pair-{os.getpid()}-{number}" for number in itertools.count())

    def __init__(self) -> None:
        super().__init__()
        self.partition = next(self.partitions)

    def make_store(self, *, clock: FakeClock, run_id: str, lease_seconds: float) -> LightningStore:
        return MongoLightningStore(
            self.uri, partition_id=self.partition, clock=clock, run_id=run_id, lease_seconds=lease_seconds
        )

    async def reopen_store(
        self, store: LightningStore, *, clock: FakeClock, lease_seconds: float
    ) -> LightningStore | None:
        await store.aclose()
        return self.make_store(clock=clock, run_id=RUN_ID, lease_seconds=lease_seconds)


class OnReplicaSet(MongoAndMemory):
    pass


def few(examples: int) -> Any:
    return settings(max_examples=examples, stateful_step_count=40, derandomize=True, database=None, deadline=None)


class TestOnStandaloneServer(MongoAndMemory.TestCase):  # type: ignore[misc]
    settings = few(6)

    @pytest.fixture(autouse=True)
    def place(self, standalone: Mongod) -> None:
        MongoAndMemory.uri = standalone.uri


class TestOnReplicaSet(OnReplicaSet.TestCase):  # type: ignore[misc]
    settings = few(6)

    @pytest.fixture(autouse=True)
    def place(self, replica_set: Mongod) -> None:
        OnReplicaSet.uri = replica_set.uri
