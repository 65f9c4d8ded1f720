"""What a process says to the one that started it arrives whole and in order, whatever happens while it is said."""

import asyncio
import gc
import json
import logging
import multiprocessing
import socket
import threading
from dataclasses import asdict
from typing import Any

import pytest
from lightning_http.child import Report
from lightning_http.logs import ParentHandler
from lightning_http.pool import RunnerProcess

RECORDS = 40
"""Not more than a pair of sockets holds: the other end does not read meanwhile."""


class Unclosed:
    """Logs when it is collected, which only the garbage collector can do."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        logging.getLogger("tests.channel").warning("unclosed")


def test_record_that_is_made_by_the_garbage_collector_is_told_too() -> None:
    ours, theirs = socket.socketpair()
    logger, handler = logging.getLogger("tests.channel"), ParentHandler(theirs)

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
    theirs.close()
    with ours, ours.makefile() as lines:
        taken = [json.loads(line)["record"] for line in lines]
    assert [each["args"][0] for each in taken if each["args"]] == list(range(RECORDS))
    assert [each["msg"] for each in taken].count("unclosed") == RECORDS


@pytest.fixture
async def process() -> RunnerProcess:
    return RunnerProcess(multiprocessing.get_context("spawn"), [b"", b""], [0])


async def test_half_a_message_is_not_waited_for(process: RunnerProcess, caplog: pytest.LogCaptureFixture) -> None:
    record = logging.makeLogRecord({"name": "tests.channel", "msg": "half", "levelno": logging.WARNING})
    said = {name: value for name, value in vars(record).items() if name != "exc_info"}
    line = json.dumps({"record": said}).encode() + b"\n"
    for data in (line + line[:-1], line[-1:] + line[:5], line[5:]):
        process.data_received(data)
    assert caplog.messages == ["half"] * 3


async def test_reports_arrive_as_they_were_made(process: RunnerProcess) -> None:
    report = Report("failed", "KeyError: 'é'", "a\nb")
    process.data_received(json.dumps({"report": asdict(report)}).encode() + b"\n")
    assert process.report == report
    assert process.has_begun


def test_values_that_cannot_be_sent_are_sent_as_text() -> None:
    ours, theirs = socket.socketpair()
    handler = ParentHandler(theirs)
    record: Any = logging.makeLogRecord({"msg": "at %s: %d", "args": (asyncio, True), "extra": object()})
    handler.handle(record)
    theirs.close()
    with ours, ours.makefile() as lines:
        (said,) = [json.loads(line)["record"] for line in lines]
    assert said["args"] == [str(asyncio), True]
    assert "extra" not in said
