"""Requests that come one by one, answered in batches; weights change between two batches."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import pytest
from lightning_tokens.batcher import Batcher, Rejected, Sampling
from lightning_tokens.engine import Generated


class Echo:
    """Repeats the last token of each prompt; computes when it is let."""

    context = 8

    def __init__(self) -> None:
        self.batches: list[tuple[list[list[int]], Sampling]] = []
        self.weights = 0
        self.let = threading.Event()
        self.let.set()
        self.began = threading.Event()
        self.error: Exception | None = None

    def take(self, weights: Mapping[str, Any], version: int | None) -> None:
        self.weights = weights["w"]

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, *, is_aborted: Callable[[int], bool]
    ) -> list[Generated]:
        self.batches.append(([list(prompt) for prompt in prompts], sampling))
        self.began.set()
        while not self.let.wait(0.01):
            if all(map(is_aborted, range(len(prompts)))):
                return [Generated([], [], "abort") for _ in prompts]
        if self.error is not None:
            raise self.error
        return [Generated([prompt[-1], self.weights], [-1.0, -2.0], "stop") for prompt in prompts]


@asynccontextmanager
async def running(echo: Echo, **options: Any) -> AsyncIterator[Batcher]:
    batcher = Batcher(cast(Any, echo), **options)
    task = asyncio.create_task(batcher.run())
    try:
        yield batcher
    finally:
        echo.let.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_requests_that_come_together_are_one_batch_for_each_way_to_sample() -> None:
    echo = Echo()
    async with running(echo, gather_seconds=0.02) as batcher:
        asked = [batcher.generate([number], {"temperature": number % 2}) for number in range(1, 6)]
        answers = await asyncio.gather(*asked)
    assert [answer.token_ids[0] for answer in answers] == [1, 2, 3, 4, 5]
    assert [prompts for prompts, _ in echo.batches] == [[[1], [3], [5]], [[2], [4]]]


async def test_no_batch_is_larger_than_the_limit() -> None:
    echo = Echo()
    async with running(echo, max_batch=2, gather_seconds=0.02) as batcher:
        await asyncio.gather(*(batcher.generate([number], {}) for number in range(5)))
    assert [len(prompts) for prompts, _ in echo.batches] == [2, 2, 1]


async def test_closed_it_lets_requests_wait_and_opened_it_answers_them_with_the_new_weights() -> None:
    echo = Echo()
    async with running(echo) as batcher:
        assert (await batcher.generate([1], {})).weight_versions is None
        await batcher.close()
        asking = asyncio.create_task(batcher.generate([1], {}))
        await batcher.update(partial(echo.take, {"w": 9}, 4), 4)
        assert len(echo.batches) == 1
        batcher.open()
        answered = await asking
    assert (answered.token_ids, answered.weight_versions) == ([1, 9], (4, 4))


async def test_weights_never_change_in_the_middle_of_a_batch() -> None:
    echo = Echo()
    async with running(echo) as batcher:
        echo.let.clear()
        asking = asyncio.create_task(batcher.generate([1], {}))
        await asyncio.to_thread(echo.began.wait, 20)
        updating = asyncio.create_task(batcher.update(partial(echo.take, {"w": 9}, 1), 1))
        await asyncio.sleep(0.05)
        assert not updating.done()
        echo.let.set()
        assert (await asking).token_ids == [1, 0]
        await updating
    assert echo.weights == 9


async def test_a_batch_whose_callers_are_gone_ends_and_makes_room() -> None:
    echo = Echo()
    async with running(echo, max_batch=2) as batcher:
        echo.let.clear()
        gone = [asyncio.create_task(batcher.generate([number], {})) for number in (1, 2)]
        await asyncio.to_thread(echo.began.wait, 20)
        waiting = asyncio.create_task(batcher.generate([3], {}))
        echo.began.clear()
        gone[0].cancel()
        assert not await asyncio.to_thread(echo.began.wait, 0.1), "the other caller waits for its answer"
        gone[1].cancel()
        assert await asyncio.to_thread(echo.began.wait, 20), "the next batch begins"
        echo.let.set()
        assert (await waiting).token_ids[0] == 3


async def test_an_abort_gives_back_what_there_is_and_may_refuse_the_rest() -> None:
    echo = Echo()
    async with running(echo) as batcher:
        echo.let.clear()
        asking = asyncio.create_task(batcher.generate([1], {}))
        await asyncio.to_thread(echo.began.wait, 20)
        await batcher.close(abort=True, reject=True)
        assert (await asking).finish_reason == "abort"
        with pytest.raises(Rejected, match="until generation is resumed"):
            await batcher.generate([1], {})
        echo.let.set()
        batcher.open()
        assert (await batcher.generate([2], {})).finish_reason == "stop"


async def test_requests_that_wait_are_refused_with_those_that_come() -> None:
    async with running(Echo()) as batcher:
        await batcher.close()
        asking = asyncio.create_task(batcher.generate([1], {}))
        await asyncio.sleep(0)
        await batcher.close(abort=True, reject=True)
        with pytest.raises(Rejected, match="until generation is resumed"):
            await asking
        batcher.open()
        assert (await batcher.generate([2], {})).finish_reason == "stop"


async def test_a_failed_batch_fails_its_requests_and_no_others() -> None:
    echo = Echo()
    echo.error = RuntimeError("out of memory")
    async with running(echo) as batcher:
        with pytest.raises(RuntimeError, match="out of memory"):
            await batcher.generate([1], {})
        echo.error = None
        assert (await batcher.generate([2], {})).token_ids == [2, 0]


async def test_a_request_that_nobody_waits_for_any_more_is_not_computed() -> None:
    echo = Echo()
    async with running(echo) as batcher:
        await batcher.close()
        asking = asyncio.create_task(batcher.generate([1], {}))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        batcher.open()
        await batcher.generate([2], {})
    assert [prompts for prompts, _ in echo.batches] == [[[2]]]


async def test_a_prompt_that_does_not_fit_is_refused() -> None:
    async with running(Echo()) as batcher:
        with pytest.raises(ValueError, match="fills the model's context"):
            await batcher.generate([1] * 8, {})
        with pytest.raises(ValueError, match="has no token"):
            await batcher.generate([], {})


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({}, Sampling(max_tokens=7)),
        ({"temperature": None, "top_k": -1}, Sampling(max_tokens=7)),
        ({"max_tokens": 5}, Sampling(max_tokens=5)),
        ({"max_tokens": 500}, Sampling(max_tokens=100)),
        ({"stop": "x"}, Sampling(max_tokens=7, stop=("x",))),
        ({"stop": ["x", "y"]}, Sampling(max_tokens=7, stop=("x", "y"))),
    ],
)
def test_what_nobody_says_is_as_the_model_has_it_and_no_answer_is_longer_than_fits(
    given: dict[str, Any], taken: Sampling
) -> None:
    assert Sampling.of(given, room=100, default_max_tokens=7) == taken


@pytest.mark.parametrize("given", [{"temperature": -1}, {"top_p": 0}, {"top_p": 1.5}])
def test_numbers_out_of_range_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="temperature is at least 0 and top_p"):
        Sampling.of(given, room=1, default_max_tokens=1)
