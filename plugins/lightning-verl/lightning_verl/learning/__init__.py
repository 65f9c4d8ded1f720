"""What is learned from rollouts: rows, credit, groups, advantages, metrics. Python and numpy; no torch, ray or verl."""

from lightning_verl.learning.advantages import gae, grpo_advantages, rloo_advantages, whitened
from lightning_verl.learning.groups import LearnedRow, Lesson, learn_from_group
from lightning_verl.learning.metrics import training_metrics, validation_metrics
from lightning_verl.learning.mini_batches import MiniBatches, make_mini_batches
from lightning_verl.learning.options import OWN_ESTIMATORS, Credit, LearningOptions, Level, weights_go_in
from lightning_verl.learning.outcomes import (
    End,
    EndedRollout,
    as_fault,
    as_trajectory_adapter,
    combined,
    is_lost,
    overlong_punishment,
    read_rollout,
)
from lightning_verl.learning.padding import (
    get_left_padded_ids_and_attention_mask,
    get_right_padded_ids_and_attention_mask,
    padded_batch,
)
from lightning_verl.learning.rows import Answer, RolloutRows, Row, make_rows
from lightning_verl.learning.steps import StepAdvantages, group_of, loss_weights, step_advantages

__all__ = [
    "OWN_ESTIMATORS",
    "Answer",
    "Credit",
    "End",
    "EndedRollout",
    "LearnedRow",
    "LearningOptions",
    "Lesson",
    "Level",
    "MiniBatches",
    "RolloutRows",
    "Row",
    "StepAdvantages",
    "as_fault",
    "as_trajectory_adapter",
    "combined",
    "gae",
    "get_left_padded_ids_and_attention_mask",
    "get_right_padded_ids_and_attention_mask",
    "group_of",
    "grpo_advantages",
    "is_lost",
    "learn_from_group",
    "loss_weights",
    "make_mini_batches",
    "make_rows",
    "overlong_punishment",
    "padded_batch",
    "read_rollout",
    "rloo_advantages",
    "step_advantages",
    "training_metrics",
    "validation_metrics",
    "weights_go_in",
    "whitened",
]
