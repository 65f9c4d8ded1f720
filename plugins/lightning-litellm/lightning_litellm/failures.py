"""The library's exceptions, as the proxy knows failures of backends."""

from collections.abc import Iterator
from typing import Any

import aiohttp
from lightning_proxy.backend import BackendBroke, BackendTimeout, BackendUnavailable, WholeAnswer
from lightning_proxy.dialects import DIALECTS
from lightning_proxy.jsons import dump
from lightning_proxy.request import Refused

from lightning_core.errors import ProxyError
from lightning_core.secrets import hide_in_text

_LONGEST_MESSAGE = 2000


def answer_of(error: Exception, path: str, address: str, library: Any) -> WholeAnswer:
    """Return the answer to a call that the library could not make.

    Raises:
        ProxyError: When there is no answer: the backend was not reached, or did not answer as one.
    """
    status = getattr(error, "status_code", None)
    if not isinstance(status, int) or status < 400 or isinstance(error, library.Timeout) or _is_without_answer(error):
        raise failure_of(error, address, library, has_begun=False) from error
    refused = Refused(status, str(getattr(error, "code", None) or status), _said(error))
    headers = [("content-type", "application/json")]
    response = getattr(error, "response", None)
    retry_after = getattr(response, "headers", {}).get("retry-after")
    if retry_after is not None:
        headers.append(("retry-after", str(retry_after)))
    return WholeAnswer(status, dump(DIALECTS[path].error(refused)), headers)


def failure_of(error: Exception, address: str, library: Any, *, has_begun: bool) -> ProxyError:
    """Return what to raise for a call that got no answer, or not all of it."""
    said = f"{address}: {_said(error)}"
    if isinstance(error, library.Timeout | TimeoutError):
        return BackendTimeout(said)
    if not has_begun and _is_out_of_reach(error):
        return BackendUnavailable(said)
    return BackendBroke(said)


def _is_out_of_reach(error: BaseException) -> bool:
    """Whether nothing was connected: the only failure after which another try is surely safe."""
    return any(
        isinstance(each, aiohttp.ClientConnectorError) or type(each).__name__ in ("ConnectError", "ConnectTimeout")
        for each in _chain(error)
    ) or "Cannot connect to host" in str(error)


def _is_without_answer(error: BaseException) -> bool:
    """Whether no answer came: the library then makes one of its own, of status 500."""
    return _is_out_of_reach(error) or any(
        isinstance(each, aiohttp.ClientConnectionError)
        or type(each).__name__ in ("ReadError", "WriteError", "RemoteProtocolError")
        for each in _chain(error)
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__


def _said(error: Exception) -> str:
    return hide_in_text(str(getattr(error, "message", None) or error) or type(error).__name__)[:_LONGEST_MESSAGE]
