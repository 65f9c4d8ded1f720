"""The limits of a proxy, which are options of `LLMProxy`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from lightning_http.body import ConnectionLimits, Seconds
from pydantic import ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, with_config
from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from lightning_proxy.models import ModelOptions

Wait = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""Seconds; 0 for no wait."""


@with_config(ConfigDict(extra="forbid"))
class AttemptLimits(TypedDict, total=False):
    """What one attempt may use; as a budget has it."""

    usd: PositiveFloat
    tokens: PositiveInt
    calls: PositiveInt
    seconds: PositiveFloat
    """From its first call on."""


@dataclass(frozen=True)
class Settings(ConnectionLimits):
    """The limits of a proxy. Seconds are real ones, unless a test brings its own clock."""

    allow_unattributed: bool = False
    allow_paths: Sequence[str] = ()
    attribution_header: str | None = None
    cors_allow_origins: Sequence[str] = ()
    models: Sequence[ModelOptions] = ()
    attempt_limits: AttemptLimits | None = None
    num_retries: NonNegativeInt = 2
    first_retry_seconds: Wait = 0.25
    max_concurrent_calls: PositiveInt = 4096
    max_waiting_calls: NonNegativeInt = 16_384
    queue_seconds: Wait = 300.0
    pause_seconds: Wait = 60.0
    stall_seconds: Seconds = 120.0
    flush_grace_seconds: Wait = 1.0
    flush_seconds: Wait | None = 30.0
    max_unsent_spans: PositiveInt = 20_000
    max_unsent_bytes: PositiveInt = 512 * 1024 * 1024
