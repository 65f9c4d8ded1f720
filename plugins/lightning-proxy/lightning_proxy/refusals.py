"""What an agent gets instead of an answer, in the form in which its API gives errors."""

from typing import Any

from lightning_core.errors import ProxyError

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class Refused(ProxyError):
    """A call that gets an error for an answer.

    Args:
        status: The HTTP status.
        kind: What happened, in one word, for programs: `backend_unavailable`, `unattributed`, ...
        message: The same for people: what, got, what next.
        retry_after: In how many seconds to try again; None where that would be no use.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.retry_after = retry_after

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return what tells a client when to try again."""
        found = [(b"content-type", b"application/json")]
        if self.retry_after is not None:
            found.append((b"retry-after", b"%d" % max(1, round(self.retry_after))))
        else:
            found.append((b"x-should-retry", b"false"))
        if self.status == 401:
            found.append((b"www-authenticate", b"Bearer"))
        return found


def proxy_stopped() -> Refused:
    """Return what a request gets that has not ended when the proxy has to."""
    return Refused(
        503,
        "proxy_stopped",
        "the proxy was stopped before the answer came to its end; try again in a moment",
        retry_after=1.0,
    )


def openai_error(refused: Refused) -> dict[str, Any]:
    """Return an error as OpenAI's API has it."""
    types = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = types.get(refused.status, "invalid_request_error" if refused.status < 500 else "server_error")
    return {"error": {"message": refused.message, "type": kind, "param": None, "code": refused.kind}}


def anthropic_error(refused: Refused) -> dict[str, Any]:
    """Return an error as Anthropic's API has it."""
    kind = _ANTHROPIC_TYPES.get(refused.status, "invalid_request_error" if refused.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": f"{refused.message} ({refused.kind})"}}
