"""How much one connection may send, and how long it may take."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, PositiveInt

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class ConnectionLimits:
    """What a client may send before the server knows who it is."""

    max_head_bytes: PositiveInt = 64 * 1024
    """The largest head of a request: its first line and its headers."""
    head_seconds: Seconds = 30.0
    """How long a head may take, from its first byte or the connection's begin."""
    max_body_bytes: PositiveInt = 64 * 1024 * 1024
    """The largest body, unpacked."""
    body_seconds: Seconds = 60.0
    """How long a body may let the server wait for its next part; where it is answered already, for its end."""
    idle_seconds: Seconds = 75.0
    """How long a connection is kept without a request. Longer than clients keep it, so that it is they who close it."""
