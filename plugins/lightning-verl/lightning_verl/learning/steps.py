"""What one step of the optimiser is given: advantages of tokens, and weights of rows."""

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_verl.learning.gae import gae, whitened
from lightning_verl.learning.options import LearningOptions
from lightning_verl.learning.rows import Answer

PackedAnswer = Sequence[float | None]
"""The fields of an `Answer`, as they come back from a queue."""

Token = tuple[int, int]
"""The row and the place in its response."""


@dataclass(frozen=True, slots=True)
class StepAdvantages:
    """By row. The lists of `advantages` and `returns` are as long as the masks, with 0.0 where they are 0."""

    advantages: list[list[float]]
    returns: list[list[float]]
    weights: list[float]
    """See `loss_weights`; all 1.0 where the loss is verl's."""


def step_advantages(
    *,
    keys: Sequence[str],
    masks: Sequence[Sequence[int]],
    answers: Sequence[Sequence[PackedAnswer]],
    options: LearningOptions,
    values: Sequence[Sequence[float]] | None = None,
    penalties: Sequence[Sequence[float]] | None = None,
    gamma: float = 1.0,
    lam: float = 1.0,
) -> StepAdvantages:
    """Give each token that is learned from its advantage.

    With `gae`, the answers of a rollout are one episode, whatever rows they are in: the step after the last token of
    an answer is the first token of the next one. With `credit="per_call"` each answer is an episode of its own.

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
    told = [[Answer(int(a[0] or 0), int(a[1] or 0), int(a[2] or 0), a[3], a[4]) for a in row] for row in answers]
    weights = loss_weights(keys, masks) if options.loss == "rollout" else [1.0] * len(keys)
    if options.advantage == "row":
        nothing = [[0.0] * len(mask) for mask in masks]
        return StepAdvantages(nothing, nothing, weights)
    if options.estimator != "gae":
        if penalties is not None:
            raise ValueError(f"a penalty in the reward needs the estimator 'gae', not {options.estimator!r}")
        advantages = [_broadcast(mask, row) for mask, row in zip(masks, told, strict=True)]
        return StepAdvantages(advantages, advantages, weights)
    if values is None:
        raise ValueError("the estimator 'gae' needs the values of a critic; give values=")
    found = _of_episodes(_episodes(keys, masks, told, options), values, penalties, gamma, lam)
    shape = [[0.0] * len(mask) for mask in masks]
    returns = [list(row) for row in shape]
    white = whitened([advantage for _, advantage, _ in found])
    for ((row, place), _, value), advantage in zip(found, white, strict=True):
        shape[row][place] = advantage
        returns[row][place] = value
    return StepAdvantages(shape, returns, weights)


def loss_weights(keys: Sequence[str], masks: Sequence[Sequence[int]]) -> list[float]:
    """Weigh rows so that each rollout weighs the same in the loss, and each token within a rollout.

    They belong to a loss that is the mean over rows of the mean over a row's tokens (verl's `seq-mean-token-mean`). A
    row has the share of its rollout's tokens that it holds, times the number of rows for each rollout: with one row
    each and no padding, all weights are 1.

    Args:
        keys: Of each row; see `step_advantages`.
        masks: Of each row, 1 for each token that is learned from.

    Returns:
        A weight for each row; 0.0 for one without such a token. Their sum is the number of rows.
    """
    tokens = [sum(map(bool, mask)) for mask in masks]
    of_rollout: dict[str, int] = {}
    for key, n in zip(keys, tokens, strict=True):
        if n:
            of_rollout[_rollout(key)] = of_rollout.get(_rollout(key), 0) + n
    rows_for_each = len(tokens) / len(of_rollout) if of_rollout else 0.0
    return [rows_for_each * n / of_rollout[_rollout(key)] if n else 0.0 for key, n in zip(keys, tokens, strict=True)]


def _rollout(key: str) -> str:
    return key.rpartition("_")[0]


def _broadcast(mask: Sequence[int], answers: Sequence[Answer]) -> list[float]:
    advantages = [0.0] * len(mask)
    for answer in answers:
        for place in range(answer.start, min(answer.stop, len(mask))):
            if mask[place]:
                advantages[place] = answer.advantage or 0.0
    return advantages


@dataclass(slots=True)
class _Episode:
    tokens: list[Token]
    rewards: list[float]


def _episodes(
    keys: Sequence[str], masks: Sequence[Sequence[int]], answers: Sequence[Sequence[Answer]], options: LearningOptions
) -> list[_Episode]:
    parts_of: dict[tuple[str, int], list[tuple[int, int, Answer]]] = {}
    for row, key in enumerate(keys):
        for answer in answers[row]:
            whose = (key, answer.order) if options.credit == "per_call" else (_rollout(key), -1)
            parts_of.setdefault(whose, []).append((answer.order, row, answer))
    episodes = []
    for parts in parts_of.values():
        episode = _Episode([], [])
        for _, row, answer in sorted(parts, key=lambda part: part[0]):
            live = [
                (row, place) for place in range(answer.start, min(answer.stop, len(masks[row]))) if masks[row][place]
            ]
            episode.tokens += live
            episode.rewards += [0.0] * len(live)
            if episode.rewards:  # of an answer that was rejected as a whole, the reward is of the one before
                episode.rewards[-1] += answer.reward or 0.0
        if episode.tokens:
            episodes.append(episode)
    return episodes


def _of_episodes(
    episodes: Sequence[_Episode],
    values: Sequence[Sequence[float]],
    penalties: Sequence[Sequence[float]] | None,
    gamma: float,
    lam: float,
) -> list[tuple[Token, float, float]]:
    found: list[tuple[Token, float, float]] = []
    for episode in episodes:
        rewards = episode.rewards
        if penalties is not None:
            rewards = [
                reward + penalties[row][place] for reward, (row, place) in zip(rewards, episode.tokens, strict=True)
            ]
        expected = [values[row][place] for row, place in episode.tokens]
        advantages, returns = gae(rewards, expected, gamma=gamma, lam=lam)
        found += zip(episode.tokens, advantages, returns, strict=True)
    return found
