"""Which requests the proxy lets through: what it knows, and what its owner opens. All others are refused."""

from collections.abc import Mapping, Sequence
from urllib.parse import quote, unquote

from lightning_core.errors import ConfigError
from lightning_proxy.apis import DIALECTS, GEMINI, Dialect, dialect_of
from lightning_proxy.request import Refused

PREFIX = "/v1"
RESPONSES = "/responses"

_VERSIONS = frozenset({PREFIX[1:], "v1beta", "v1alpha"})
_GOOGLES_KEY = "x-goog-api-key"

_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_COUNTS_TOKENS = frozenset({"/messages/count_tokens", f"{RESPONSES}/input_tokens"})
_PLAIN = ":@!$&'()*+,;="
"""Stands for itself in a part of a path: RFC 3986, section 3.3."""


class OpenPaths:
    """The paths that a proxy's owner opens.

    Args:
        entries: Paths below `/v1`, such as `audio/speech`: each opens what is below it, too. `POST audio/speech` opens
            one method, `audio/speech` all of them.

    Raises:
        ConfigError: When an entry is not a path.
    """

    def __init__(self, entries: Sequence[str] = ()) -> None:
        self._entries: list[tuple[str, list[str]]] = []
        for entry in entries:
            method, _, path = entry.rpartition(" ")
            parts = _parts(path)
            if (
                not parts
                or "/".join(parts) != path
                or not _is_plain(parts)
                or "*" in path
                or method not in {*_METHODS, ""}
            ):
                raise ConfigError(
                    f"allow_paths has {entry!r}; an entry is a path below {PREFIX}, such as 'audio/speech' or "
                    "'POST audio/speech'"
                )
            self._entries.append((method, parts))

    def has(self, method: str, below: str) -> bool:
        """Whether a request may pass.

        Args:
            method: Its method.
            below: Its path, as `split_path` returns it.
        """
        parts = below.split("/")[1:]
        return any(known in (method, "") and parts[: len(path)] == path for known, path in self._entries)


def split_path(path: str) -> tuple[str, bool]:
    """Return a path as a backend's server reads it, without `/v1`, and whether it had that.

    However a path is written, it leads to the same: no call passes by what counts and records it.

    Raises:
        Refused: When it goes up, which servers read in several ways.
    """
    parts = _parts(path)
    if not _is_plain(parts):
        raise Refused(404, "unknown_path", f"a path has no part '.' or '..'; got {path!r}")
    return "/" + "/".join(parts), path.split("/", 2)[1] in _VERSIONS


def quoted(below: str) -> str:
    """Return what `split_path` returned as it stands in a URL."""
    return quote(below, safe=f"/{_PLAIN}")


def counts_tokens(method: str, below: str) -> bool:
    """Whether a request only asks how many tokens a prompt has, which is free."""
    return method == "POST" and below in _COUNTS_TOKENS


def error_dialect(path: str, headers: Mapping[str, str]) -> Dialect | None:
    """Return the API in whose form an error is given; None for OpenAI's usual one."""
    parts = _parts(path)
    if parts[:1] == ["messages"] or "anthropic-version" in headers:
        return DIALECTS["/messages"]
    if path.startswith("/v1beta/") or _GOOGLES_KEY in headers:
        return GEMINI
    return dialect_of("/" + "/".join(parts))


def _parts(path: str) -> list[str]:
    """Return the parts of a path below `/v1`, or Google's `/v1beta`, as a backend's server reads them."""
    parts = [part for part in unquote(path).split("/") if part]
    while parts and parts[0] in _VERSIONS:  # twice where a client adds one to a base URL that has one
        del parts[0]
    return parts


def _is_plain(parts: Sequence[str]) -> bool:
    return "." not in parts and ".." not in parts
