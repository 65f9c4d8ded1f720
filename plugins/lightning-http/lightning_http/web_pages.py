"""Who may reach a server: other machines with a key alone, and never what pages of other sites have sent."""

import functools
import ipaddress
from collections.abc import Collection, Mapping

from lightning_core.errors import AccessDenied, ConfigError


@functools.lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def url_of(host: str, port: int) -> str:
    """Return where programs of this machine find what listens there."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def require_key(host: str, key: str | None, *, what: str, give: str) -> None:
    """Refuse to listen where other machines can call without a key.

    Args:
        host: Where to listen.
        key: What callers have to say; None for nothing.
        what: What listens, for the message.
        give: How it is given a key.

    Raises:
        ConfigError: Says how to give one.
    """
    if key is None and not is_loopback(host):
        raise ConfigError(
            f"host {host} can be reached from other machines, so {what} needs a key: give {give}, or serve on 127.0.0.1"
        )


class OtherSite(AccessDenied):
    """A page of another site sent the request."""


def require_local(headers: Mapping[str, str]) -> None:
    """Refuse a request for a name that other machines may have: a page whose name was made to lead to this machine.

    Raises:
        AccessDenied: When the header `Host` names anything but this machine.
    """
    host = headers.get("host", "")
    name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    if not is_loopback(name):
        raise AccessDenied(
            f"this server has no key, so it answers only to its own machine; the request was for {host!r}. "
            "Give the server a key"
        )


def require_same_site(
    method: str, headers: Mapping[str, str], allow_origins: Collection[str] = (), *, hint: str = ""
) -> None:
    """Refuse a request of another site's page. Programs that are not browsers send none of these headers.

    The rule is that of Go's `http.CrossOriginProtection`. A browser sends no `Origin` for links and images, so that a
    GET without it passes: its answer cannot be read by a page.

    Args:
        method: The request's.
        headers: Its headers, by lower-case names.
        allow_origins: The origins that may ask; `*` stands for all.
        hint: Says in the error how to allow one.

    Raises:
        OtherSite: When a page of another site asks; another port of the same host is another site here.
    """
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is None and (site is None or method in ("GET", "HEAD")):
        return
    if "*" in allow_origins or origin in allow_origins or site in ("same-origin", "none"):
        return
    if site is None and origin is not None and origin.partition("://")[2].lower() == headers.get("host", "").lower():
        return
    raise OtherSite(f"a web page of another site ({origin or site}) sent this; only its own pages may{hint}")
