"""Tracers that cannot work in one process are refused, whichever comes second."""

import threading

import pytest

from lightning_core.errors import TracerError
from lightning_core.tracer.exclusive import ProcessClaim, claim_process

APART = {"cat": "dogs chase it"}


@pytest.mark.parametrize(
    ("first", "second"),
    [(("dog", APART), ("cat", {})), (("cat", {}), ("dog", APART)), (("dog", APART), ("cat", APART))],
)
def test_the_second_of_two_that_exclude_each_other_is_refused_with_the_reason(first, second):
    with claim_process(first[0], not_beside=first[1]):
        expected = (
            f"tracer '{second[0]}' cannot work .* tracer '{first[0]}' is at work: dogs chase it; tear '{first[0]}'"
        )
        with pytest.raises(TracerError, match=expected):
            claim_process(second[0], not_beside=second[1])
    claim_process(second[0], not_beside=second[1]).release()


def test_one_that_was_refused_holds_nothing():
    with claim_process("dog", not_beside=APART):
        with pytest.raises(TracerError):
            claim_process("cat", not_beside={"bird": "cats eat it"})
        claim_process("bird").release()


def test_others_are_left_alone():
    with claim_process("dog", not_beside=APART), claim_process("bird", not_beside={"fish": "it is eaten"}):
        pass


def test_claims_of_one_name_are_counted():
    one = claim_process("dog", not_beside=APART)
    other = claim_process("dog", not_beside=APART)
    one.release()
    one.release()
    with pytest.raises(TracerError, match="'dog'"):
        claim_process("cat")
    other.release()
    claim_process("cat").release()


def test_of_many_that_come_at_once_only_those_of_one_name_are_taken():
    gate = threading.Barrier(16)
    taken: list[ProcessClaim] = []

    def claim(name: str) -> None:
        gate.wait(20)
        try:
            taken.append(claim_process(name, not_beside={"odd": "no", "even": "no"}))
        except TracerError:
            return

    threads = [threading.Thread(target=claim, args=("odd" if number % 2 else "even",)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    try:
        assert len({claim.name for claim in taken}) == 1
        assert len(taken) == 8
    finally:
        for claim in taken:
            claim.release()
