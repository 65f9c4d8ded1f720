"""The limits of a proxy, which are options of `LLMProxy`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field, PositiveFloat, PositiveInt, with_config
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
class Settings:
    """The limits of a proxy; see `LLMProxy`."""

    allow_unattributed: bool
    allow_paths: Sequence[str]
    attribution_header: str | None
    models: Sequence[ModelOptions]
    attempt_limits: AttemptLimits | None
    num_retries: int
    max_concurrent_calls: int
    queue_seconds: float
    max_body_bytes: int
