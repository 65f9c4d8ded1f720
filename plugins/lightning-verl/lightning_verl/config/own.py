"""The keys under `agentlightning`, which are ours; everything else in a configuration is verl's."""

import difflib
import warnings
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from omegaconf import OmegaConf
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lightning_core.registry.options import show_value, wanted
from lightning_verl.config.given import Given
from lightning_verl.learning import Credit, Level

PREFIX = "agentlightning"
"""The key that ours are under, as in agentlightning 0.3."""

_WITHOUT_EFFECT = {
    "port": "the trainer's model proxy has its own; set llm_proxy there",
    "debug": "rows merge where the engine's tokens are exactly continuous, and training/n_unmerged_rollouts counts the "
    "rollouts of which that is not so",
    "mismatch_log_dir": "nothing is written there",
}


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
    """Of agentlightning 0.3; has no effect."""
    mismatch_log_dir: str | None = None
    """Of agentlightning 0.3; has no effect."""


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
    """Of agentlightning 0.3; has no effect."""


_NAMES = {
    **{name: f"{PREFIX}.trace_aggregator.{name}" for name in TraceAggregator.model_fields},
    **{name: f"{PREFIX}.{name}" for name in Own.model_fields},
}
"""By the last part of each key, the whole of it."""


def read_own(given: Given, before: Mapping[str, Any]) -> tuple[Own, list[str]]:
    """Take our own keys out of what is given.

    Args:
        given: What the user set; the keys are gone from it afterwards.
        before: What is set before, by dotted key.

    Returns:
        The keys with their values, and what is wrong with them; then the values are the defaults.
    """
    values = given.values.pop(PREFIX, None) or {}
    if not isinstance(values, dict):
        return Own(), [f"{given.where((PREFIX,))}{PREFIX} is {show_value(PREFIX, values)}; it has to be a mapping"]
    first = OmegaConf.create({PREFIX: {}})
    for key, value in before.items():
        OmegaConf.update(first, key, value, force_add=True)
    try:
        return Own.model_validate(OmegaConf.to_container(OmegaConf.merge(first[PREFIX], values))), []
    except ValidationError as exc:
        return Own(), list(dict.fromkeys(_faults(given, exc)))


def warn_of_superseded(own: Own) -> None:
    """Tell of the keys of agentlightning 0.3 that have no effect any more."""
    for of in (own, own.trace_aggregator):
        for name in of.model_fields_set & _WITHOUT_EFFECT.keys():
            if getattr(of, name):
                warnings.warn(
                    f"{_NAMES[name]} has no effect: {_WITHOUT_EFFECT[name]}; leave it out",
                    DeprecationWarning,
                    stacklevel=3,
                )


def _faults(given: Given, exc: ValidationError) -> Iterator[str]:
    for fault in exc.errors():
        keys = [str(key) for key in fault["loc"]]
        if keys[0] == "on_failure":  # a text or a number, and pydantic tells of each
            keys = keys[:1]
        name, where = ".".join((PREFIX, *keys)), given.where((PREFIX, *keys))
        if fault["type"] == "extra_forbidden":
            yield f"{where}unknown key {name!r}{_meant(keys[-1])}"
        elif keys[0] == "on_failure":
            yield f"{where}{name} is {show_value(name, fault['input'])}; it has to be 'drop' or a finite number"
        else:
            yield f"{where}{name} is {show_value(name, fault['input'])}; {wanted(fault)}"


def _meant(key: str) -> str:
    near = difflib.get_close_matches(key, _NAMES, n=1)
    return f". Did you mean {_NAMES[near[0]]!r}?" if near else f"; there are: {', '.join(Own.model_fields)}"
