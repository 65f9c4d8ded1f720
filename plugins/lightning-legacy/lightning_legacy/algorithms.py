"""What algorithms of agentlightning 0.3 are written with."""

import functools
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

from lightning_core.types import Dataset

R = TypeVar("R")
SampleT = TypeVar("SampleT")


def batch_iter_over_dataset(dataset: Dataset[SampleT], batch_size: int) -> Iterator[Sequence[SampleT]]:
    """Yield batches of samples in a random order, without end.

    Each pass has a new order. A batch larger than the dataset is the whole of it; else all have the same size, and a
    batch may begin in one pass and end in the next.
    """
    batch: list[int] = []
    while True:
        order = list(range(len(dataset)))
        random.shuffle(order)
        if batch_size >= len(order):
            yield [dataset[index] for index in order]
            continue
        for index in order:
            if index in batch:
                continue
            batch.append(index)
            if len(batch) == batch_size:
                yield [dataset[index] for index in batch]
                batch = []


def with_store(function: Callable[..., Awaitable[R]]) -> Callable[..., Awaitable[R]]:
    """Give a coroutine method of an algorithm its store, as the first argument after `self`."""

    @functools.wraps(function)
    async def call(self: Any, *args: Any, **kwargs: Any) -> R:
        return await function(self, self.get_store(), *args, **kwargs)

    return call


def with_llm_proxy(
    required: bool = False, auto_start: bool = True
) -> Callable[[Callable[..., Awaitable[R]]], Callable[..., Awaitable[R]]]:
    """Give a coroutine method of an algorithm its model proxy, or None, as the first argument after `self`.

    Args:
        required: Whether to raise a ValueError where there is none.
        auto_start: Whether to start a proxy that does not run, and stop it after the call.
    """

    def decorate(function: Callable[..., Awaitable[R]]) -> Callable[..., Awaitable[R]]:
        @functools.wraps(function)
        async def call(self: Any, *args: Any, **kwargs: Any) -> R:
            proxy = self.get_llm_proxy()
            if proxy is None and required:
                raise ValueError(f"{type(self).__name__} has no model proxy; give Trainer(llm_proxy=...)")
            if proxy is None or not auto_start or proxy.is_running():
                return await function(self, proxy, *args, **kwargs)
            await proxy.start()
            try:
                return await function(self, proxy, *args, **kwargs)
            finally:
                await proxy.stop()

        return call

    return decorate
