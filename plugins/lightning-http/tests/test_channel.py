"""What a process says to the one that started it arrives whole and in order, whatever happens while it is said."""

import asyncio
import gc
import logging
import os
import pickle
import socket
import threading
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
from lightning_http.channel import Channel, ChannelClosed, describe_exit
from lightning_http.child import Parent, Report
from lightning_http.logs import CarriedRecord, CarryingHandler

from lightning_core.errors import LightningError, StoreError

RECORDS = 40
"""Not more than a pair of sockets holds: the other end does not read meanwhile."""

Heard = list[Any]


class Ends:
    """A channel, what it has heard, and the other end."""

    def __init__(self) -> None:
        self.heard: Heard = []
        self._has_heard = asyncio.Event()
        self.channel = Channel(self._hear)
        self._socket, theirs = socket.socketpair()
        self.connection = Connection(theirs.detach())

    async def open(self) -> None:
        await self.channel.open(self._socket)

    async def until_heard(self, number: int) -> Heard:
        async with asyncio.timeout(20):
            while len(self.heard) < number:
                self._has_heard.clear()
                await self._has_heard.wait()
        return self.heard

    def _hear(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.heard.append((name, *arguments))
        self._has_heard.set()


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    ends = Ends()
    await ends.open()
    yield ends
    ends.connection.close()
    await ends.channel.aclose()


class Unclosed:
    """Logs when it is collected, which only the garbage collector can do."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        logging.getLogger("tests.channel").warning("unclosed")


async def test_record_that_is_made_by_the_garbage_collector_is_told_too(ends: Ends, monkeypatch: Any) -> None:
    monkeypatch.setattr(Parent, "_watch", lambda self: None)  # else this process would end with its "parent"
    parent = Parent(ends.connection)
    logger, handler = logging.getLogger("tests.channel"), CarryingHandler(parent.tell)

    def log() -> None:
        before = gc.get_threshold()
        gc.set_threshold(1)  # at any moment, the one in which something is said included
        try:
            for number in range(RECORDS):
                Unclosed()
                logger.warning("number %d", number)
            gc.collect()
        finally:
            gc.set_threshold(*before)

    logger.addHandler(handler)
    logger.propagate = False
    thread = threading.Thread(target=log, name="logs", daemon=True)
    thread.start()
    thread.join(timeout=20)
    logger.removeHandler(handler)
    logger.propagate = True
    assert not thread.is_alive()
    parent.tell(Report("ready"))
    heard = [said for _, said in await ends.until_heard(2 * RECORDS + 1)]
    assert heard[-1] == Report("ready")
    taken = [each.attributes for each in heard if isinstance(each, CarriedRecord)]
    assert [each["args"][0] for each in taken if each["args"]] == list(range(RECORDS))
    assert [each["msg"] for each in taken].count("unclosed") == RECORDS


async def test_half_a_message_is_not_waited_for(ends: Ends) -> None:
    data = pickle.dumps(("tell", 0, "number", (1,)))
    message = len(data).to_bytes(4) + data
    os.write(ends.connection.fileno(), message + message[:-1])
    assert await ends.until_heard(1) == [("number", 1)]
    os.write(ends.connection.fileno(), message[-1:] + message)
    assert await ends.until_heard(3) == [("number", 1)] * 3


async def test_what_was_said_before_the_end_is_heard_though_the_other_end_stays_open(ends: Ends) -> None:
    with Connection(os.dup(ends.connection.fileno())):  # as a forked child of a dead process holds it
        for number in range(RECORDS):
            ends.connection.send(("tell", 0, "number", (number,)))
        ends.channel.abort()
        assert ends.heard == [("number", number) for number in range(RECORDS)]
        await ends.channel.closed


async def test_what_was_said_before_the_end_is_heard_though_a_message_to_it_fails(ends: Ends) -> None:
    ends.connection.send(("tell", 0, "number", (1,)))
    ends.connection.close()
    ends.channel.tell("stop")
    assert await ends.until_heard(1) == [("number", 1)]
    with pytest.raises(ChannelClosed):
        await ends.channel.ask("anything")


async def test_errors_of_an_answer_keep_their_kind_where_it_is_known() -> None:
    async def answer(name: str, arguments: tuple[Any, ...]) -> Any:
        if name == "echo":
            return arguments
        raise {"store": StoreError("down"), "other": ValueError("odd")}[name]

    one, other = (Channel(lambda *_: None, answer, (StoreError, LightningError)) for _ in range(2))
    ours, theirs = socket.socketpair()
    await one.open(ours)
    await other.open(theirs)
    assert await one.ask("echo", 1, b"2" * 1_000_000) == (1, b"2" * 1_000_000)
    with pytest.raises(StoreError, match="down"):
        await other.ask("store")
    with pytest.raises(LightningError, match="ValueError: odd"):
        await one.ask("other")
    await one.aclose()
    await other.aclose()


@pytest.mark.parametrize(("code", "text"), [(3, "exit code 3"), (-9, "signal SIGKILL"), (-200, "signal 200")])
def test_ends_of_processes_are_described(code: int, text: str) -> None:
    assert describe_exit(code) == text
