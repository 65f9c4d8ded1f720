"""Many coroutines at once, with one owner."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def concurrently(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all at once and return their results, in the order given.

    Nothing is left running: when one raises, or the caller is cancelled, the others are cancelled and awaited.

    Raises:
        Exception: What the first one to fail raised, as it is, and not in a group.
    """
    failure: Exception | None = None
    tasks: list[asyncio.Task[T]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except ExceptionGroup as failures:
        failure = failures.exceptions[0]
    if failure is not None:
        raise failure
    return [task.result() for task in tasks]
