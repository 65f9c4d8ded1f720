"""The limits of a proxy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from lightning_core.store.http.connection_limits import ConnectionLimits


@dataclass(frozen=True)
class Settings(ConnectionLimits):
    """The limits of a proxy. Seconds are real ones, unless a test brings its own clock."""

    allow_unattributed: bool = False
    allow_paths: Sequence[str] = ()
    attribution_header: str | None = None
    num_retries: int = 2
    first_retry_seconds: float = 0.25
    max_concurrent_calls: int = 4096
    max_waiting_calls: int = 16_384
    queue_seconds: float = 300.0
    pause_seconds: float = 60.0
    stall_seconds: float = 120.0
    flush_grace_seconds: float = 1.0
    flush_seconds: float | None = 30.0
    max_incoming_bytes: int = 512 * 1024 * 1024
    max_unsent_spans: int = 20_000
    max_unsent_bytes: int = 512 * 1024 * 1024

    def share_of(self, workers: int) -> Self:
        """Return the limits of one of so many workers; together they go over these by less than one each."""
        return replace(
            self,
            max_concurrent_calls=-(-self.max_concurrent_calls // workers),
            max_waiting_calls=-(-self.max_waiting_calls // workers),
            max_incoming_bytes=-(-self.max_incoming_bytes // workers),
            max_unsent_spans=-(-self.max_unsent_spans // workers),
            max_unsent_bytes=-(-self.max_unsent_bytes // workers),
        )
