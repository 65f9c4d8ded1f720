"""One step: from what was learned of groups to a clipped loss, and the updates that it makes."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

import numpy as np
import torch
from lightning_tokens.learning.groups import LearnedRow, Lesson
from lightning_tokens.learning.mini_batches import make_mini_batches
from lightning_tokens.learning.steps import loss_weights, rollout_of, step_advantages

from lightning_grpo.options import TrainingOptions
from lightning_grpo.policy import Policy

_BATCH_TOKENS = 8192

_FURTHEST = 20.0
"""The largest difference of log-probabilities whose exponential is taken, as in verl."""


def learn(
    policy: Policy,
    lessons: Sequence[Lesson],
    *,
    options: TrainingOptions,
    version: int,
    batch_tokens: int = _BATCH_TOKENS,
) -> dict[str, float]:
    """Update a policy by what was learned of the groups of one step, and return what there is to say of it.

    The ratio is to the log-probabilities that the engine recorded when the tokens were sampled.

    Args:
        policy: What learns; no other thread uses it meanwhile.
        lessons: One or more with rows.
        options: What is learned, and what the loss is.
        version: The number of this step.
        batch_tokens: The most tokens that are computed at once, padding included, where a row has no more.

    Raises:
        AlgorithmError: When the loss is not finite, and the weights are as they were before that update.
    """
    rows = {f"{group}_{row.session}_{row.index}": row for group, each in enumerate(lessons) for row in each.rows}
    keys = list(rows)
    found = step_advantages(
        keys=keys,
        masks=[row.mask for row in rows.values()],
        answers=[row.packed() for row in rows.values()],
        options=options.learning,
    )
    advantages = dict(zip(keys, found.advantages, strict=True))
    with policy.lock:
        stats = _updates(policy, rows, advantages, options, batch_tokens)
        policy.begin(version)
    metrics = {f"actor/{name}": fmean(values) for name, values in stats.items() if name != "logprob_difference"}
    return {**metrics, "training/logprob_difference": stats["logprob_difference"][0]}  # later ones have learned already


def _updates(
    policy: Policy,
    rows: Mapping[str, LearnedRow],
    advantages: Mapping[str, np.ndarray],
    options: TrainingOptions,
    batch_tokens: int,
) -> dict[str, list[float]]:
    """Make the updates of a step; return each number of each."""
    metrics: dict[str, list[float]] = {}
    for part in make_mini_batches(list(rows), updates=(options.updates,), n_workers=1).parts:
        masks = [rows[key].mask for key in part]
        weights = token_weights(part, masks, options=options)
        total = sum(weights[key] * np.count_nonzero(mask) for key, mask in zip(part, masks, strict=True))
        sums: dict[str, float] = {}
        for batch in _batches(rows, part, batch_tokens):
            loss, numbers = _loss(policy, [rows[key] for key in batch], batch, advantages, weights, total, options)
            loss.backward()
            for name, value in numbers.items():
                sums[name] = sums.get(name, 0.0) + value
        sums["grad_norm"] = policy.update(sums["pg_loss"])
        for name, value in sums.items():
            metrics.setdefault(name, []).append(value)
    return metrics


def token_weights(keys: Sequence[str], masks: Sequence[Sequence[int]], *, options: TrainingOptions) -> dict[str, float]:
    """Return how much each learned token of a row counts in the loss, which is their weighted sum.

    Args:
        keys: Of each row, `<group>_<session>_<index>`.
        masks: Of each row, 1 for each token that is learned from.
        options: What the loss is a mean over.
    """
    tokens = [int(np.count_nonzero(mask)) for mask in masks]
    n_rollouts = len({rollout_of(key) for key in keys})
    match options.loss:
        case "rollout":  # `loss_weights` are those of a mean over rows of means over their tokens
            of_rows = zip(loss_weights(keys, masks), tokens, strict=True)
            weights = [weight / (len(keys) * n) for weight, n in of_rows]
        case "token":
            weights = [1 / sum(tokens)] * len(keys)
        case "constant":
            weights = [1 / (n_rollouts * options.max_tokens)] * len(keys)
    return dict(zip(keys, weights, strict=True))


def clipped_loss(
    logprobs: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, *, clip: tuple[float, float]
) -> torch.Tensor:
    """Return the loss of each token: equation 7 of PPO (Schulman et al. 2017, arXiv:1707.06347).

    With another limit above 1 than below it: clip-higher, equation 10 of DAPO (Yu et al. 2025, arXiv:2503.14476).

    Args:
        logprobs: Under the policy: float32 [tokens].
        old: When they were sampled: float32 [tokens].
        advantages: float32 [tokens].
        clip: How far below and above 1 the ratio may go.
    """
    ratio = (logprobs - old).clamp(-_FURTHEST, _FURTHEST).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip[0], 1 + clip[1]) * advantages)


def k3(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Return the estimate of the divergence at each token: Schulman's k3, equation 4 of Shao et al. 2024.

    See http://joschu.net/blog/kl-approx.html. As in verl it is at most 10.

    Args:
        logprobs: Under the policy: float32 [tokens].
        reference: Under the model that the training began with: float32 [tokens].
    """
    difference = (reference - logprobs).clamp(-_FURTHEST, _FURTHEST)
    return (difference.exp() - difference - 1).clamp(-10.0, 10.0)


def _loss(
    policy: Policy,
    rows: Sequence[LearnedRow],
    keys: Sequence[str],
    advantages: Mapping[str, np.ndarray],
    weights: Mapping[str, float],
    total: float,
    options: TrainingOptions,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Return the loss of some rows, and their share in each number of the mini-batch.

    All numbers but the loss are means over tokens: `total` is the sum of the weights of all tokens of the mini-batch.
    """

    def joined(values: Sequence[Sequence[float] | np.ndarray]) -> torch.Tensor:
        return torch.tensor(np.concatenate(values), dtype=torch.float32, device=policy.device)

    logprobs = torch.cat(policy.logprobs(rows))
    old = joined([row.logprobs or () for row in rows])
    weight = joined([np.asarray(row.mask) * weights[key] for row, key in zip(rows, keys, strict=True)])
    advantage = joined([advantages[key] for key in keys])
    each = clipped_loss(logprobs, old, advantage, clip=options.clip)
    ratio = (logprobs.detach() - old).exp()
    is_clipped = torch.where(advantage > 0, ratio > 1 + options.clip[1], ratio < 1 - options.clip[0])
    share = weight / total
    numbers = {
        "pg_loss": float((weight * each.detach()).sum()),
        "clip_fraction": float((share * is_clipped).sum()),
        "logprob_difference": float((share * (logprobs.detach() - old).abs()).sum()),
        "entropy_estimate": float(-(share * logprobs.detach()).sum()),
    }
    if options.kl:
        divergence = k3(logprobs, torch.cat(policy.reference_logprobs(rows)))
        numbers["kl"] = float((share * divergence.detach()).sum())
        each = each + options.kl * divergence
    return (weight * each).sum(), numbers


def _batches(rows: Mapping[str, LearnedRow], keys: Sequence[str], most: int) -> Iterator[list[str]]:
    """Give rows of about the same length together: as many as have no more tokens, with padding, than `most`."""
    batch: list[str] = []
    for key in sorted(keys, key=lambda key: _length(rows[key])):
        if batch and _length(rows[key]) * (len(batch) + 1) > most:
            yield batch
            batch = []
        batch.append(key)
    if batch:
        yield batch


def _length(row: LearnedRow) -> int:
    return len(row.prompt_ids) + len(row.response_ids)
