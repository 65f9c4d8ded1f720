"""What one step of the optimiser is given: advantages of tokens, and weights of rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lightning_tokens.learning.advantages import gae, whitened
from lightning_tokens.learning.options import LearningOptions
from lightning_tokens.learning.rows import Answer

PackedAnswer = Sequence[float | None]
"""The fields of an `Answer`, as they come back from a queue."""


@dataclass(frozen=True, slots=True)
class StepAdvantages:
    """By row. The arrays are float64, as long as the masks, and 0.0 where these are 0."""

    advantages: list[np.ndarray]
    returns: list[np.ndarray]
    weights: list[float]
    """See `loss_weights`; all 1.0 where the loss is verl's."""
    n_rows: int
    """How many rows have a token that is learned from: what a mean over rows is taken over."""


def step_advantages(
    *,
    keys: Sequence[str],
    masks: Sequence[np.ndarray | Sequence[int]],
    answers: Sequence[Sequence[PackedAnswer]],
    options: LearningOptions,
    values: Sequence[np.ndarray | Sequence[float]] | None = None,
    penalties: Sequence[np.ndarray | Sequence[float]] | None = None,
    gamma: float = 1.0,
    lam: float = 1.0,
) -> StepAdvantages:
    """Give each token that is learned from its advantage.

    With `gae`, the answers of a rollout are one episode, whatever rows they are in: the step after the last token of
    an answer is the first token of the next one. Several choices of one call are not steps of each other: each is
    followed by what came after the call, and the call before by the first of them. With `credit="per_call"` each answer
    is an episode of its own.

    With `advantage="row"` the advantages are verl's to compute: here they are 0.0, and only the weights are of use.

    Args:
        keys: Of each row, `<group>_<session>_<index>`: rows that differ only in the last part are of one rollout.
        masks: Of each row, 1 for each token of the response that is learned from. Rows may be padded, or padding.
        answers: Of each row, its answers.
        options: The estimator and the credit.
        values: Of each row, what the critic expected before each token; for `gae`.
        penalties: Of each row, what is added to the reward after each token, such as a KL penalty; for `gae`.
        gamma: The discount for each token; for `gae`.
        lam: The trade-off between bias and variance; for `gae`.

    Raises:
        ValueError: When `gae` is given no values, or another estimator is given penalties.
    """
    live = [np.asarray(mask, dtype=bool) for mask in masks]
    unpacked = [[Answer(int(a[0] or 0), int(a[1] or 0), int(a[2] or 0), a[3], a[4]) for a in row] for row in answers]
    weights = loss_weights(keys, live) if options.loss == "rollout" else [1.0] * len(keys)
    n_rows = sum(bool(mask.any()) for mask in live)
    if options.advantage == "row":
        nothing = [np.zeros(len(mask)) for mask in live]
        return StepAdvantages(nothing, nothing, weights, n_rows)
    if options.estimator != "gae":
        if penalties is not None:
            raise ValueError(f"a penalty in the reward needs the estimator 'gae', not {options.estimator!r}")
        advantages = [_broadcast(mask, row) for mask, row in zip(live, unpacked, strict=True)]
        return StepAdvantages(advantages, advantages, weights, n_rows)
    if values is None:
        raise ValueError("the estimator 'gae' needs the values of a critic; give values=")
    begins = np.cumsum([0, *map(len, live)])
    tokens, rewards, lengths = _episodes(keys, live, begins, unpacked, options)
    if penalties is not None:
        rewards += _joined(penalties)
    found, returns = gae(rewards[tokens], _joined(values)[tokens], lengths=lengths, gamma=gamma, lam=lam)
    tokens, first = np.unique(tokens, return_index=True)
    found, returns = found[first], returns[first]
    return StepAdvantages(_by_row(whitened(found), tokens, begins), _by_row(returns, tokens, begins), weights, n_rows)


def loss_weights(keys: Sequence[str], masks: Sequence[np.ndarray | Sequence[int]]) -> list[float]:
    """Weigh rows so that each rollout weighs the same in the loss, and each token within a rollout.

    They belong to a loss that is the mean, over the rows that have a token, of the mean over a row's tokens (verl's
    `seq-mean-token-mean`, where `global_batch_size` counts those rows). A row has the share of its rollout's tokens
    that it holds, times the number of rows for each rollout: with one row each, all weights are 1.

    Args:
        keys: Of each row; see `step_advantages`.
        masks: Of each row, 1 for each token that is learned from.

    Returns:
        A weight for each row; 0.0 for one without such a token. Their sum is the number of rows that have one.
    """
    tokens = [int(np.count_nonzero(mask)) for mask in masks]
    of_rollout: dict[str, int] = {}
    for key, n in zip(keys, tokens, strict=True):
        if n:
            of_rollout[rollout_of(key)] = of_rollout.get(rollout_of(key), 0) + n
    rows_for_each = sum(map(bool, tokens)) / len(of_rollout) if of_rollout else 0.0
    return [rows_for_each * n / of_rollout[rollout_of(key)] if n else 0.0 for key, n in zip(keys, tokens, strict=True)]


def rollout_of(key: str) -> str:
    """Return the part of a row's key that it shares with the other rows of its rollout."""
    return key.rpartition("_")[0]


def group_of(key: str) -> str:
    """Return the part of a row's key that it shares with the other rows of its group."""
    return rollout_of(rollout_of(key))


def _broadcast(mask: np.ndarray, answers: Sequence[Answer]) -> np.ndarray:
    advantages = np.zeros(len(mask))
    for answer in answers:
        advantages[answer.start : answer.stop] = answer.advantage or 0.0
    return advantages * mask


def _episodes(
    keys: Sequence[str],
    masks: Sequence[np.ndarray],
    begins: np.ndarray,
    answers: Sequence[Sequence[Answer]],
    options: LearningOptions,
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Return the tokens of all episodes, the reward after each token of all rows, and how long the episodes are.

    A token is its place among those of all rows, one after the other. Each further choice of a call begins an episode
    of its own, in which the tokens of the later calls stand again: they have the same advantages there.
    """
    calls_of: dict[tuple[str, int], dict[int, list[tuple[np.ndarray, float]]]] = {}
    for row in sorted(range(len(keys)), key=lambda row: _index_of(keys[row])):
        for answer in answers[row]:
            whose = (keys[row], answer.order) if options.credit == "per_call" else (rollout_of(keys[row]), -1)
            places = begins[row] + answer.start + np.flatnonzero(masks[row][answer.start : answer.stop])
            calls_of.setdefault(whose, {}).setdefault(answer.order, []).append((places, answer.reward or 0.0))
    rewards = np.zeros(begins[-1])
    episodes: list[list[np.ndarray]] = []
    for calls in calls_of.values():
        later: list[np.ndarray] = []
        reward = 0.0
        for _, choices in sorted(calls.items(), reverse=True):
            reward += choices[0][1]
            kept = [places for places, _ in choices if len(places)]
            if not kept:  # of a call that was rejected as a whole, the reward is of the one before
                continue
            for places in kept:
                rewards[places[-1]] += reward
            reward = 0.0
            episodes += [[choice, *later] for choice in kept[1:]]
            later = [kept[0], *later]
        episodes.append(later)
    tokens = [np.zeros(0, dtype=np.int64), *(places for episode in episodes for places in episode)]
    return np.concatenate(tokens), rewards, [sum(map(len, episode)) for episode in episodes]


def _index_of(key: str) -> int:
    return int(key.rpartition("_")[2])


def _joined(rows: Sequence[np.ndarray | Sequence[float]]) -> np.ndarray:
    return np.concatenate([np.zeros(0), *(np.asarray(row, dtype=np.float64) for row in rows)])


def _by_row(values: np.ndarray, tokens: np.ndarray, begins: np.ndarray) -> list[np.ndarray]:
    """Put values where their tokens are, and 0.0 elsewhere."""
    every = np.zeros(begins[-1])
    every[tokens] = values
    return np.split(every, begins[1:-1]) if len(begins) > 1 else []
