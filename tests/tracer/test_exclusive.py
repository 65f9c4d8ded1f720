"""Tracers that cannot work in one process are refused, whichever comes second."""

import threading
from contextlib import ExitStack

import pytest

from lightning_core.errors import TracerError
from lightning_core.tracer.exclusive import claim_process

APART = {"cat": "dogs chase it"}


@pytest.mark.parametrize(
    ("first", "second"),
    [(("dog", APART), ("cat", {})), (("cat", {}), ("dog", APART)), (("dog", APART), ("cat", APART))],
)
def test_the_second_of_two_that_exclude_each_other_is_refused_with_the_reason(first, second):
    refused = f"tracer '{second[0]}' cannot work .* tracer '{first[0]}' is at work: dogs chase it; tear '{first[0]}'"
    with ExitStack() as others:
        with claim_process(first[0], not_beside=first[1]):
            others.enter_context(claim_process(first[0], not_beside=first[1]))
            others.enter_context(claim_process("bird", not_beside={"fish": "it is eaten"}))
        with pytest.raises(TracerError, match=refused):
            others.enter_context(claim_process(second[0], not_beside=second[1]))
    with claim_process(second[0], not_beside=second[1]):
        pass


def test_of_many_that_come_at_once_only_those_of_one_name_are_taken():
    gate = threading.Barrier(16)
    taken: list[str] = []
    held = ExitStack()

    def claim(name: str) -> None:
        gate.wait(20)
        try:
            held.enter_context(claim_process(name, not_beside={"odd": "no", "even": "no"}))
        except TracerError:
            return
        taken.append(name)

    threads = [threading.Thread(target=claim, args=("odd" if number % 2 else "even",)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    with held:
        assert len(set(taken)) == 1
        assert len(taken) == 8
