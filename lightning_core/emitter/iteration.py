"""Generators inside of a span that is current in them, and nowhere else.

A generator runs in the context of whoever iterates it. A span that is made current in it would be so for that code
too, between two items. So a generator has a context of its own here, a copy of the one where the iteration began:
what it sets there stays there, and what its consumer sets later does not reach it.
"""

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

_MAX_ITEMS = 1_000
"""How much of what a generator yields is kept: it may be endless."""

Opener = Callable[[], AbstractContextManager[T]]
"""Makes the span; it is entered in the generator's context."""

Finisher = Callable[[T, list[Any]], None]
"""Told what was yielded, the first 1,000 of it, before the span ends, however it does."""


def iterate_apart(
    open_span: Opener[T], start: Callable[[], Generator[Any, Any, Any]], finish: Finisher[T]
) -> Generator[Any, Any, Any]:
    """Iterate a generator in a context of its own, inside of a span. What is sent or thrown goes to it."""
    context, yielded = copy_context(), list[Any]()
    with _entered_in(context, open_span) as recording:
        try:
            return (yield from _stepwise(context, context.run(start), partial(_keep, yielded)))
        finally:
            context.run(finish, recording, yielded)


async def iterate_apart_async(
    open_span: Opener[T], start: Callable[[], AsyncGenerator[Any, Any]], finish: Finisher[T]
) -> AsyncGenerator[Any, Any]:
    """Do what `iterate_apart` does, for an async generator."""
    context, yielded = copy_context(), list[Any]()
    with _entered_in(context, open_span) as recording:
        try:
            generator = context.run(start)
            step: Awaitable[Any] = generator.asend(None)
            while True:
                try:
                    item = await _Within(context, step)
                except StopAsyncIteration:
                    return
                _keep(yielded, item)
                try:
                    sent = yield item
                except GeneratorExit:
                    await _Within(context, generator.aclose())
                    raise
                except BaseException as exc:
                    step = generator.athrow(exc)
                else:
                    step = generator.asend(sent)
        finally:
            context.run(finish, recording, yielded)


class _Within(Awaitable[T]):
    """Awaits something in another context: each step of it runs there."""

    def __init__(self, context: Context, awaitable: Awaitable[T]) -> None:
        self._context = context
        self._awaitable = awaitable

    def __await__(self) -> Generator[Any, Any, T]:
        return _stepwise(self._context, self._context.run(self._awaitable.__await__))


def _stepwise(
    context: Context, generator: Generator[Any, Any, T], tell: Callable[[Any], None] | None = None
) -> Generator[Any, Any, T]:
    """Do what `yield from generator` does, with each step in a context."""
    step = partial(generator.send, None)
    while True:
        try:
            item = context.run(step)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        if tell is not None:
            tell(item)
        try:
            sent = yield item
        except GeneratorExit:
            context.run(generator.close)
            raise
        except BaseException as exc:
            step = partial(generator.throw, exc)
        else:
            step = partial(generator.send, sent)


@contextmanager
def _entered_in(context: Context, open_span: Opener[T]) -> Iterator[T]:
    span = context.run(open_span)
    recording = context.run(span.__enter__)
    try:
        yield recording
    except BaseException:
        context.run(span.__exit__, *sys.exc_info())
        raise
    else:
        context.run(span.__exit__, None, None, None)


def _keep(yielded: list[Any], item: Any) -> None:
    if len(yielded) < _MAX_ITEMS:
        yielded.append(item)
