"""Which hosts only this machine can reach."""

import functools
import ipaddress


@functools.lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
