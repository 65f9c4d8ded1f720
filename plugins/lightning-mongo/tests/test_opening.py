"""What is refused, and how: in one line that says what to do, and never shows a password."""

import asyncio
import logging
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from lightning_mongo import MongoBackend, MongoLightningStore, Settings, UnusableDatabase
from lightning_mongo.errors import Address
from lightning_mongo.testing import Mongod, free_port
from pymongo import MongoClient

from lightning_core import Trainer, rollout
from lightning_core.errors import AccessDenied, InvalidRequest, StoreClosed, StoreError, StoreUnavailable
from lightning_core.types import Span

PASSWORD = "hunter2-Zq"


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("", "begins with mongodb://"),
        ("http://db:27017", "begins with mongodb://"),
        (f"db:{PASSWORD}@host", "begins with mongodb://"),
        ("mongodb://", "is not the address of a MongoDB"),
        ("mongodb://db:port", "is not the address of a MongoDB: Port"),
        ("mongodb://db/?wat=1", "is not the address of a MongoDB: Unknown option"),
        (f"mongodb://me:{PASSWORD}@db:port", "is not the address of a MongoDB; it is like"),
        (f"mongodb://me:{PASSWORD}/x@db", "is not the address of a MongoDB; it is like"),
        (f"mongodb://me:x@{PASSWORD}@db", "is not the address of a MongoDB; it is like"),
        (None, "the uri of a MongoDB is a text; got NoneType"),
        (7, "the uri of a MongoDB is a text; got int"),
    ],
)
def test_a_wrong_address_is_refused_at_once(uri: Any, said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        MongoLightningStore(uri)
    assert said in str(caught.value)
    assert PASSWORD not in "".join(_told(caught.value))


def _told(error: BaseException | None) -> Iterator[str]:
    """Give all that a traceback of this error shows."""
    while error is not None:
        yield repr(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"partition_id": "a/b"}, "partition_id is 'a/b': String should match pattern"),
        ({"partition_id": ""}, "partition_id is ''"),
        ({"database": "a.b"}, "database is 'a.b'"),
        ({"connect_seconds": 0}, "connect_seconds is 0"),
        ({"retry_seconds": -1}, "retry_seconds is -1"),
        ({"poll_milliseconds": float("nan")}, "poll_milliseconds is nan"),
        ({"keep_days": "7"}, "keep_days is '7'"),
        ({"keep_days": 0}, "keep_days is 0: Input should be greater than 0"),
        ({"keep_days": 1e9}, "keep_days is 1000000000.0"),
        ({"client_options": {"maxPoolSize": "x"}}, "with these options: The value of maxPoolSize must be an integer"),
        ({"client_options": {"tls": True, "tlsCAFile": "no.pem"}}, "No such file or directory: 'no.pem'; look at"),
        ({"client_options": {"username": "u", "password": 5}}, "with these options; look at"),
        ({"client_options": {"nonsense": 1}}, "with these options: Unknown option: nonsense"),
        ({"client_options": {1: 1}}, "client_options.1"),
        ({"client_options": ["tls"]}, "client_options: Input should be a"),
    ],
)
def test_a_wrong_option_is_refused_at_once(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        MongoLightningStore(**options)


@pytest.mark.parametrize(
    ("uri", "client_options"),
    [
        ("mongodb://db", {"username": "u", "authMechanismProperties": PASSWORD}),
        (f"mongodb+srv://me:{PASSWORD}:1@db.example.org", {}),
        (f"mongodb+srv://me:x/{PASSWORD}@db.example.org", {}),
    ],
)
def test_no_refusal_of_an_option_shows_a_password(uri: str, client_options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="cannot be used with these options") as caught:
        MongoLightningStore(uri, client_options=client_options)
    assert PASSWORD not in "".join(_told(caught.value))


def test_names_of_agentlightning_are_taken_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="mongo_uri"):
        MongoLightningStore(mongo_uri="mongodb://db")  # type: ignore[call-arg]


def test_an_address_is_shown_without_its_password() -> None:
    address = Address(f"mongodb://me:{PASSWORD}@one:1,two:2/admin?replicaSet=rs0")
    assert str(address) == "mongodb://one:1,two:2"
    assert PASSWORD not in repr(address)
    assert str(Address(f"mongodb+srv://me:{PASSWORD}@cluster.example.org")) == "mongodb+srv://cluster.example.org"


async def test_where_no_server_answers_it_is_said_in_time() -> None:
    store = MongoLightningStore(f"mongodb://me:{PASSWORD}@127.0.0.1:{free_port()}", connect_seconds=0.3)
    began = time.monotonic()
    with pytest.raises(
        StoreUnavailable, match=r"no MongoDB answers at mongodb://127.0.0.1:\d+ within 0.3 s: .*; start it, or check"
    ) as caught:
        await store.enqueue_rollout("a")
    assert time.monotonic() - began < 20
    assert PASSWORD not in "".join(_told(caught.value))
    await store.aclose()


def test_a_run_without_a_server_ends_with_one_error_and_logs_nothing_before_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MongoLightningStore(f"mongodb://127.0.0.1:{free_port()}", connect_seconds=0.2)
    with pytest.raises(StoreUnavailable, match="no MongoDB answers"):
        Trainer(algorithm="baseline", store=store).fit(rollout(lambda task: 1.0), ["a"])
    asyncio.run(store.aclose())
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_close_ends_a_look_for_a_server(monkeypatch: pytest.MonkeyPatch, nothing_left_running: None) -> None:
    monkeypatch.setattr("lightning_mongo.portal.HURRY_SECONDS", 0.1)
    monkeypatch.setattr("lightning_core.store.facade.CLOSE_SECONDS", 0.1)
    store = MongoLightningStore(f"mongodb://127.0.0.1:{free_port()}", connect_seconds=1000)
    asked = asyncio.create_task(store.get_rollout_by_id("a"))
    await asyncio.sleep(0)
    await asyncio.wait_for(store.aclose(), 20)
    with pytest.raises(StoreClosed):
        await asyncio.wait_for(asked, 20)


async def test_a_wrong_password_is_refused_and_never_shown(
    needs_mongod: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with Mongod(user=("me", "right")) as mongod:
        for user, said in ((f"me:{PASSWORD}@", "refuses the name or the password in the uri"), ("", "does not allow")):
            store = MongoLightningStore(mongod.uri.replace("://", f"://{user}"))
            with pytest.raises(AccessDenied, match=said) as caught:
                await store.enqueue_rollout("a")
            assert PASSWORD not in "".join([*_told(caught.value), repr(store), repr(vars(store))])
            await store.aclose()
        store = MongoLightningStore(mongod.uri.replace("://", "://me:right@"))
        assert (await store.enqueue_rollout("a")).status == "queuing"
        await store.aclose()
    assert PASSWORD not in caplog.text


async def test_a_database_of_a_newer_version_is_left_as_it_was(mongod: Mongod, partition: str) -> None:
    name = f"newer-{partition}"
    with MongoClient[Any](mongod.uri) as client:
        client[name]["lightning.schema"].insert_one({"_id": "schema", "version": 2})
        before = client[name].command("dbStats")["objects"], client[name].list_collection_names()
        store = MongoLightningStore(mongod.uri, database=name)
        with pytest.raises(UnusableDatabase, match=r"is of version 2, and this lightning-mongo knows 1; upgrade"):
            await store.enqueue_rollout("a")
        await store.aclose()
        assert (client[name].command("dbStats")["objects"], client[name].list_collection_names()) == before
        client.drop_database(name)


async def test_indexes_are_made_once_and_checked(mongod: Mongod, partition: str) -> None:
    name = f"indexes-{partition}"
    with MongoClient[Any](mongod.uri) as client:
        for _ in range(2):
            store = MongoLightningStore(mongod.uri, database=name)
            await store.enqueue_rollout("a")
            await store.aclose()
        rollouts = client[name]["lightning.rollouts"]
        rollouts.drop_index("due")
        store = MongoLightningStore(mongod.uri, database=name)
        await store.statistics()
        await store.aclose()
        assert "due" in rollouts.index_information()
        keys = [(key, 1) for key in ("_id.run", "claims.request", "claims.place")]
        wrong: dict[str, Any] = {
            "due": {"keys": "other"},
            "claimed": {"keys": keys, "partialFilterExpression": {"claims": {"$exists": True}}},
        }
        for index, options in wrong.items():
            rollouts.drop_index(index)
            rollouts.create_index(name=index, **options)
            store = MongoLightningStore(mongod.uri, database=name)
            with pytest.raises(UnusableDatabase, match=rf"has another index in the place of one of ours; .*{index}"):
                await store.statistics()
            await store.aclose()
            rollouts.drop_index(index)
        client.drop_database(name)


async def test_the_queue_and_the_deadlines_are_looked_up_in_their_indexes(standalone: Mongod, partition: str) -> None:
    store = MongoLightningStore(standalone.uri, partition_id=partition, run_id="r")
    await store.enqueue_rollout("a")
    with MongoClient[Any](standalone.uri) as client:
        rollouts = client["lightning"]["lightning.rollouts"]
        for field, index in (("ticket", "queued"), ("deadline", "due")):
            query = {"_id.run": f"{partition}/r", field: {"$exists": True}}
            plan = rollouts.find(query).sort(field, 1).limit(1).explain()["queryPlanner"]["winningPlan"]
            assert index in str(plan)
            assert "SORT" not in str(plan)
    await store.aclose()


async def test_a_forked_child_is_told_to_open_its_own(standalone: Mongod, partition: str) -> None:
    backend = MongoBackend(Settings(standalone.uri, partition_id=partition))
    await backend.kept_runs()
    backend._portal._pid = os.getpid() + 1
    with pytest.raises(StoreError, match=r"and this is its forked child .*; open another one here"):
        await backend.kept_runs()
    backend._portal._pid = os.getpid()
    await backend.aclose()


@pytest.mark.slow
async def test_what_has_ended_expires_with_its_spans(standalone: Mongod, partition: str) -> None:
    keep_days = 0.2 / 86_400
    store = MongoLightningStore(standalone.uri, partition_id=partition, keep_days=keep_days)
    started = await store.start_rollout("a")
    queued = await store.enqueue_rollout("b")
    ids = {"rollout_id": started.rollout_id, "attempt_id": started.attempt.attempt_id}
    await store.add_span(Span.from_attributes(attributes={}, **ids))
    await store.save_state("apo", 1)
    await store.update_attempt(started.rollout_id, "latest", status="succeeded")
    deadline = time.monotonic() + 60
    while (await store.statistics())["total_rollouts"] == 2 or (await store.statistics())["total_spans"]:
        assert time.monotonic() < deadline, "the server does not delete what has expired"
        await asyncio.sleep(0.1)
    assert await store.get_rollout_by_id(queued.rollout_id) is not None
    assert await store.load_state("apo") == 1
    await store.aclose()
