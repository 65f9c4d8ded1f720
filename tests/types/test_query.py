"""A page of results is a sequence of its items."""

from lightning_core.types import PaginatedResult, Worker

WORKERS = [Worker(worker_id=f"w-{number}") for number in range(3)]
PAGE = PaginatedResult[Worker](items=WORKERS, limit=3, offset=6, total=20)


def test_a_page_is_a_sequence() -> None:
    assert len(PAGE) == 3
    assert list(PAGE) == WORKERS
    assert PAGE[0] == WORKERS[0]
    assert PAGE[-1] == WORKERS[2]
    assert PAGE[1:] == WORKERS[1:]
    assert list(reversed(PAGE)) == WORKERS[::-1]
    assert WORKERS[1] in PAGE
    assert PAGE.index(WORKERS[1]) == 1
    assert not PaginatedResult[Worker](items=[], limit=-1, offset=0, total=0)


def test_a_page_shows_its_place() -> None:
    assert repr(PaginatedResult(items=["a"], limit=1, offset=6, total=20)) == "<PaginatedResult 1 of 20 from 6: ['a']>"


def test_a_page_comes_back_from_json_as_it_was() -> None:
    assert PaginatedResult[Worker].model_validate_json(PAGE.model_dump_json()) == PAGE
