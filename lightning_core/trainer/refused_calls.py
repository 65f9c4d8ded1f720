"""What an algorithm raises when the budget has kept a model call of its own from starting."""

from typing import Any

_STATUS = 402
"""The proxy's answer to such a call; HTTP's "Payment Required"."""


def came_of_a_refused_call(error: BaseException) -> bool:
    """Whether an error is the refusal of a call, or was raised because of one: in a group, from it, or handling it.

    Each HTTP client has an exception of its own; they have the status in common.
    """
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        if _status(each) == _STATUS:
            return True
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions
        waiting += (each.__cause__, None if each.__suppress_context__ else each.__context__)
    return False


def _status(error: BaseException) -> Any:
    """Return the HTTP status as openai, anthropic, httpx, requests, aiohttp and urllib tell it."""
    for source in (error, getattr(error, "response", None)):
        for name in ("status_code", "status"):
            if isinstance(status := getattr(source, name, None), int):
                return status
    return None
