"""What a runner process says arrives whole and in order, whatever happens while it is said."""

import gc
import logging
import os
import pickle
import threading
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import pytest
from lightning_http.channel import Line, Report, Words
from lightning_http.logs import CarriedRecord, CarryingHandler

RECORDS = 40
"""No more than a pipe holds: nobody reads meanwhile."""

Ends = tuple[Connection, Connection]


@pytest.fixture
def ends() -> Iterator[Ends]:
    here, there = Pipe()
    with here, there:
        yield here, there


class Unclosed:
    """Logs when it is collected, which only the garbage collector can do."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        logging.getLogger("tests.line").warning("unclosed")


def take_all(words: Words) -> list[Report | CarriedRecord]:
    taken: list[Report | CarriedRecord] = []
    while (word := words.next()) is not None:
        taken.append(pickle.loads(word))
    return taken


def test_record_that_is_made_by_the_garbage_collector_is_told_too(ends: Ends) -> None:
    here, there = ends
    line = Line(there)
    logger, handler = logging.getLogger("tests.line"), CarryingHandler(line.tell)

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
    words = Words(here)
    taken = [each.attributes for each in take_all(words) if isinstance(each, CarriedRecord)]
    words.close()
    assert [each["args"][0] for each in taken if each["args"]] == list(range(RECORDS))
    assert [each["msg"] for each in taken].count("unclosed") == RECORDS


def test_half_a_word_is_not_waited_for(ends: Ends) -> None:
    here, there = ends
    Line(there).tell(Report("ready"))
    word = os.read(here.fileno(), 65_536)
    words = Words(here)
    os.write(there.fileno(), word[:-1])
    assert words.next() is None
    os.write(there.fileno(), word[-1:] + word)
    assert take_all(words) == [Report("ready")] * 2
    there.close()
    with pytest.raises(EOFError):
        words.next()
    words.close()
