"""What runner processes log is shown as what this process logs: same levels, same handlers, same form."""

import gc
import json
import logging
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lightning_http.logs import ParentHandler
from lightning_http.pool import StartMethod
from lightning_http.processes import ProcessesStrategy

from lightning_core.logs import reset_logging, setup_logging
from lightning_core.store import InMemoryLightningStore
from lightning_core.trainer import Trainer

pytestmark = pytest.mark.usefixtures("process_agents", "no_process_left")


@pytest.fixture(autouse=True)
def usual_logging() -> Iterator[None]:
    yield
    reset_logging()


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_set_up_of_this_process_holds_in_runner_processes(start_method: StartMethod, tmp_path: Path, agents: Any):
    file = tmp_path / "log.jsonl"
    setup_logging("INFO", format="json", console=False, files=file, apply_to=["process_agents"])
    trainer = Trainer(algorithm="baseline", strategy=ProcessesStrategy(start_method=start_method))
    result = trainer.fit(agents.log, ["some/path"])
    shown = [json.loads(line) for line in file.read_text().splitlines()]
    first, second = [each for each in shown if each["logger"] == "process_agents"]
    assert (first["level"], first["event"], first["task"]) == ("info", "lightning.told", "some/path")
    assert (first["number"], first["text"]) == (3, "in a thread")
    assert (second["level"], second["text"]) == ("warning", "it went wrong")
    assert second["exception"].endswith("KeyError: 'api_key=***'")
    for each in (first, second):
        assert each["run_id"] == result.run_id
        assert each["rollout_id"].startswith("ro-")
        assert each["attempt_id"].startswith("at-")


def test_handlers_of_a_program_get_records_of_runner_processes_and_those_below_the_level_stay_there(
    caplog: pytest.LogCaptureFixture, agents: Any
):
    with caplog.at_level(logging.WARNING, "process_agents"):
        Trainer(algorithm="baseline", strategy=ProcessesStrategy()).fit(agents.log, ["a"])
    (record,) = [each for each in caplog.records if each.name == "process_agents"]
    assert (record.levelname, record.getMessage(), record.processName) == ("WARNING", "it went wrong", "runner 0")
    assert record.process != os.getpid()


def test_process_that_an_agent_forks_shows_its_warnings_by_itself(
    caplog: Any, capfd: pytest.CaptureFixture[str], agents: Any
):
    # A fork server writes where this process did when the server began: not to what is captured here.
    strategy = ProcessesStrategy(start_method="spawn")
    Trainer(algorithm="baseline", strategy=strategy).fit(agents.log_from_a_fork, ["a"])
    assert [each.getMessage() for each in caplog.records if each.name == "process_agents"] == ["from here"]
    assert "from a fork" in capfd.readouterr().err


def test_handler_that_fails_does_not_hide_a_death(tmp_path: Path, capfd: pytest.CaptureFixture[str], agents: Any):
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise ConnectionError("no log server")

    handler, logger = Broken(), logging.getLogger("process_agents")
    logger.addHandler(handler)
    try:
        store = InMemoryLightningStore(lease_seconds=600)  # longer than a test may take: it is not waited for
        result = Trainer(algorithm="baseline", strategy=ProcessesStrategy(), store=store).fit(
            agents.log_and_die_once, [str(tmp_path / "flag")]
        )
    finally:
        logger.removeHandler(handler)
    assert (result.status, result.rollouts.succeeded) == ("succeeded", 1)
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("lightning.record_not_shown")]
    assert told == ["lightning.record_not_shown process=runner 0; this is told once: no log server"] * 2


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
