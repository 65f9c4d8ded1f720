"""What a training is told, checked before torch is imported."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from lightning_tokens.learning.options import Credit, LearningOptions, Level
from pydantic import Field, FiniteFloat, NonNegativeInt

from lightning_core.errors import ConfigError
from lightning_core.registry import check_options

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]

Advantage = Literal["grpo", "dr_grpo", "rloo"]
"""What a reward is compared with: the mean of its group in standard deviations; the mean alone; that of the others."""

Loss = Literal["rollout", "token", "constant"]
"""What the loss is a mean over: each rollout the same (GRPO's), each token the same (DAPO's), or a sum over tokens
divided by a constant (Dr. GRPO's)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """What a training is; `GRPO` says what each option means, and which of them has a default."""

    model: str
    """The absolute path of a folder, or a name on the Hugging Face hub."""
    steps: int
    batch_size: int
    group_size: int
    learning_rate: float
    updates: int
    advantage: Advantage
    loss: Loss
    clip: tuple[float, float]
    """How far below and above 1 the ratio may go."""
    kl: float
    lora: int
    max_tokens: int
    """Of a row; the constant of `loss="constant"`."""
    validate_every: int
    seed: int
    device: str | None
    generator: str
    """`module`, or the URL of a vLLM server."""
    learning: LearningOptions


def learning_options(advantage: Advantage, max_tokens: int, given: Mapping[str, Any] | None) -> LearningOptions:
    """Return what is learned, and how.

    Args:
        advantage: What a reward is compared with.
        max_tokens: Of a row.
        given: The option `learning`.

    Raises:
        ConfigError: Names what is wrong.
    """
    fields = dict(given or {})
    check_options("learning", fields, _learning)
    options = LearningOptions(
        max_prompt_length=max_tokens,
        max_response_length=max_tokens,
        estimator="rloo" if advantage == "rloo" else "grpo",
        norm_by_std=advantage == "grpo",
        overlong_counts_prompt=True,
        **{"level": "trajectory", **fields},
    )
    for name, why in options.conflicts():
        raise ConfigError(f"learning.{name} is {getattr(options, name)!r}: {why}")
    return options


def clip_range(clip: float | Sequence[float]) -> tuple[float, float]:
    """Return how far below and above 1 the ratio may go.

    Raises:
        ConfigError: When that is not above 0, and below 1 where it is below.
    """
    limits = [clip, clip] if isinstance(clip, int | float) else list(clip)
    if len(limits) != 2 or not 0 < limits[0] < 1 or not limits[1] > 0:
        raise ConfigError(f"clip is {clip!r}; it is a number between 0 and 1, or two, below and above: [0.2, 0.28]")
    return float(limits[0]), float(limits[1])


def _learning(
    credit: Credit = "final",
    call_discount: Annotated[float, Field(ge=0, le=1)] = 1.0,
    reward_weights: dict[str, FiniteFloat] = {},  # noqa: B006  # read for its type
    on_failure: Literal["drop"] | FiniteFloat = "drop",
    mask_truncated: bool = False,
    overlong_buffer: NonNegativeInt = 0,
    overlong_penalty: NonNegative = 1.0,
    level: Level = "trajectory",
) -> None:
    """Stand for what `learning` takes; see `LearningOptions`."""
