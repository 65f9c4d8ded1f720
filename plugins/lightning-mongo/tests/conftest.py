"""Servers for the tests, one of each kind for the session, and a partition of its own for each test."""

import asyncio
import itertools
import os
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
from lightning_mongo.testing import PACKAGE, Mongod, find_mongod

_partitions = (f"{os.getpid()}-{number}" for number in itertools.count())


@pytest.fixture(scope="session")
def needs_mongod() -> None:
    if find_mongod() is None:
        pytest.skip(f"there is no mongod; {PACKAGE} has one")


@pytest.fixture(scope="session")
def standalone(needs_mongod: None) -> Iterator[Mongod]:
    with Mongod() as mongod:
        yield mongod


@pytest.fixture(scope="session")
def replica_set(needs_mongod: None) -> Iterator[Mongod]:
    with Mongod(replica_set=True) as mongod:
        yield mongod


@pytest.fixture(params=["standalone", "replica_set"])
def mongod(request: pytest.FixtureRequest) -> Mongod:
    """Each kind of server, one after the other."""
    server = request.getfixturevalue(request.param)
    assert isinstance(server, Mongod)
    return server


@pytest.fixture
def partition() -> str:
    """A partition that nobody else uses."""
    return next(_partitions)


@pytest.fixture
async def nothing_left_running() -> AsyncIterator[None]:
    """Fail a test that leaves a task or a thread of a store behind."""
    yield
    assert not asyncio.all_tasks() - {asyncio.current_task()}
    assert "lightning-mongo" not in [thread.name for thread in threading.enumerate()]
