"""The keys under `agentlightning`, which are ours; everything else in a configuration is verl's."""

import warnings
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from lightning_tokens.learning.options import Credit, Level
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lightning_core.errors import ConfigError
from lightning_core.registry import check_options
from lightning_verl.config.given import Given, nested

PREFIX = "agentlightning"
"""The key that ours are under, as in agentlightning 0.3."""

_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Length = Annotated[int, Field(strict=True, ge=1)]


class TraceAggregator(BaseModel):
    """`agentlightning.trace_aggregator`: what a row is, and how long it may be."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    level: Level = "transition"
    """A row for each model call, or one for all calls whose tokens are exactly continuous."""
    trajectory_max_prompt_length: _Length = 2048
    """Tokens; the longest prompt of a trajectory, which is the first turn's."""
    trajectory_max_response_length: _Length = 8192
    """Tokens; the longest response of a trajectory: all answers, and what came in between."""
    debug: bool | None = None
    mismatch_log_dir: str | None = None


class Own(BaseModel):
    """What is set under `agentlightning`; `docs/verl.md` says what each key means."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: Literal["cpu", "cuda"] | None = None
    """Where models are trained and served; None to look for an accelerator."""
    backend: Literal["tokens", "openai"] = "tokens"
    """How the proxy asks verl's rollout servers: with token ids, or over their HTTP."""
    trace_aggregator: TraceAggregator = TraceAggregator()
    credit: Credit = "final"
    """Which rewards an answer is judged by."""
    call_discount: Annotated[_Number, Field(ge=0, le=1)] = 1.0
    """By how much a reward counts less for each call before it."""
    reward_weights: dict[str, _Number] = Field(default_factory=dict)
    """By name of a reward, its weight; empty for the primary reward alone."""
    on_failure: Literal["drop"] | _Number = "drop"
    """What a rollout that failed is worth."""
    mask_truncated: bool = False
    """Whether rollouts that were cut off are left out of the loss, as in DAPO."""
    overlong_buffer: Annotated[int, Field(strict=True, ge=0)] = 0
    """Tokens before the limit of a response over which its reward sinks, as in DAPO; 0 for none."""
    overlong_penalty: Annotated[_Number, Field(gt=0)] = 1.0
    """By how much the reward of a response of the full length sinks."""
    advantage: Literal["rollout", "row"] | None = None
    """Whether a rollout or a row is a sample; None for the rollout where that is known for the estimator."""
    loss: Literal["rollout", "verl"] | None = None
    """Whether rollouts weigh the same in the loss; None for that, unless `actor.loss_agg_mode` is set."""
    checkpoint_minutes: Annotated[_Number, Field(gt=0)] = 10.0
    """How long after a checkpoint the next one is written, where `trainer.save_freq` does not say it in steps."""
    port: int | None = None


_SUPERSEDED = {
    f"{PREFIX}.port": "the trainer's model proxy has its own; set llm_proxy there",
    f"{PREFIX}.trace_aggregator.debug": "training/n_unmerged_rollouts counts the rollouts whose rows do not merge",
    f"{PREFIX}.trace_aggregator.mismatch_log_dir": "nothing is written there",
}
"""Keys of agentlightning 0.3, and why they have no effect any more."""


def read_own(given: Given, before: Mapping[str, Any]) -> Own:
    """Take our own keys out of what is given.

    Args:
        given: What the user set; the keys are gone from it afterwards.
        before: What is set before, by dotted key.

    Raises:
        ConfigError: Says which keys there are not, and which values do not fit.
    """
    for key, why in _SUPERSEDED.items():
        if given.get(key):
            warnings.warn(f"{key} has no effect: {why}; leave it out", DeprecationWarning, stacklevel=4)
    values = nested({**before, **given.take(PREFIX)}).get(PREFIX, {})
    if not isinstance(values, dict):
        raise ConfigError(f"{PREFIX} is {values!r}; it has to be a mapping")
    rows = values.get("trace_aggregator")
    check_options(PREFIX, values, Own)
    check_options(f"{PREFIX}.trace_aggregator", rows or {}, TraceAggregator)
    try:
        return Own.model_validate(values)
    except ValidationError as exc:
        raise ConfigError(f"{PREFIX}: {exc}") from exc
