"""Request ids: the same one again is the same request, and has one effect."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from lightning_core.errors import InvalidRequest
from lightning_core.lifecycle import MAX_REQUESTS, Request
from lightning_core.store.backend import StoreBackend


def digest_of(*parts: Any) -> str:
    """Return 16 characters that stand for values; none where JSON cannot hold them: these cannot be compared."""
    try:
        text = _encode(parts)
    except (TypeError, ValueError, RecursionError):  # not what JSON can hold: the memory store takes it all the same
        return ""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def make_request_of(request_id: str | None, operation: str, *arguments: Any) -> Request | None:
    """Return what is remembered of a request: its id, and what stands for its arguments. None without an id."""
    return None if request_id is None else Request(request_id, None, digest_of(operation, *arguments))


def check_same(known: Request | None, request: Request) -> None:
    """Check that a request is the one that came under its id before, if one did.

    Raises:
        InvalidRequest: When that one had other arguments.
    """
    if known is not None and known.digest and request.digest and known.digest != request.digest:
        raise InvalidRequest(
            f"request id {request.request_id!r} came before with other arguments; an id names one request, so repeat "
            "it as it was, or take a new id"
        )


async def recall(
    backend: StoreBackend, run_id: str, owner: str, requests: Sequence[Request], request: Request, *, now: float
) -> Request | None:
    """Return the request of this id that changed a record before, None where this is the first.

    Before a record forgets its oldest requests in favour of this one, the backend keeps them.

    Args:
        backend: Where they are kept.
        run_id: The run.
        owner: The record.
        requests: What the record itself remembers.
        request: The request.
        now: The time, in seconds since the epoch.

    Raises:
        InvalidRequest: When that one had other arguments.
    """
    known = next((each for each in requests if each.request_id == request.request_id), None)
    if known is None and len(requests) >= MAX_REQUESTS:
        surplus = requests[: len(requests) + 1 - MAX_REQUESTS]
        known = await backend.remember_requests(run_id, owner, surplus, now=now, wanted=request.request_id)
    check_same(known, request)
    return known


def _encode_model(value: Any) -> Any:
    return value.__dict__ if isinstance(value, BaseModel) else type(value).__qualname__


_encode = json.JSONEncoder(sort_keys=True, default=_encode_model).encode
