"""What is learned from the rollouts of one task."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lightning_tokens.learning.advantages import grpo_advantages, rloo_advantages
from lightning_tokens.learning.options import LearningOptions
from lightning_tokens.learning.outcomes import EndedRollout
from lightning_tokens.learning.rows import Answer, Row, Versions

WHOLE = -1
"""The key of a reward that is the whole rollout's rather than one call's."""


@dataclass(frozen=True, slots=True)
class LearnedRow:
    """A row to train on, with what each of its answers is worth."""

    session: int
    """Its rollout: the place among those of the group, from 0."""
    index: int
    """Its place among the rows of the rollout, from 0."""
    prompt_ids: list[int] = field(repr=False)
    response_ids: list[int] = field(repr=False)
    mask: list[int] = field(repr=False)
    """1 for a token that is learned from; the last one is, unless its answer has no advantage."""
    logprobs: list[float] | None = field(repr=False)
    scores: list[float] = field(repr=False)
    """The rewards, each at the last token of what it is for, else 0.0. verl calls them `rm_scores`."""
    answers: tuple[Answer, ...]
    num_turns: int
    """How many calls the rollout has in all its rows."""
    versions: Versions | None
    """The weights that its answers were sampled with; None where one of their calls does not say."""

    def packed(self) -> list[tuple[int, int, int, float | None, float | None]]:
        """Return the answers as plain tuples, which can travel without this package."""
        return [(each.order, each.start, each.stop, each.reward, each.advantage) for each in self.answers]


@dataclass(frozen=True, slots=True)
class Lesson:
    """What is learned from one group."""

    rollouts: tuple[EndedRollout, ...]
    rows: tuple[LearnedRow, ...]
    """None when the group is dropped."""
    dropped: str | None = None
    """Why nothing is learned, in one line; None when something is."""
    has_spread: bool = True
    """Whether the rewards differ; where they do not, no advantage of a group-based estimator does."""
    only_reward: float | None = None
    """What each reward of two or more rollouts is; None where they differ, or of one rollout alone."""


def learn_from_group(rollouts: Sequence[EndedRollout], *, options: LearningOptions) -> Lesson:
    """Judge the rollouts of one task by each other.

    Every reward counts, also that of a rollout whose rows were too long. A fault, a rollout without a reward, and a
    failure that is dropped are not there at all.

    Args:
        rollouts: All of the group, in the order of their sessions.
        options: The estimator, the credit, and what a failure is worth.
    """
    ended = tuple(rollouts)
    rewards = [_rewards(rollout, options) for rollout in ended]
    n_rewarded = sum(bool(each) for each in rewards)
    if n_rewarded < options.min_rewards:
        return Lesson(ended, (), _why_dropped(ended, n_rewarded, options))
    advantages = _advantages(rewards, options)
    rows: list[LearnedRow] = []
    for session, rollout in enumerate(ended):
        if rewards[session] and not (options.mask_truncated and rollout.is_truncated):
            rows += _learned_rows(rollout, session, rewards[session], advantages[session], options)
    spread = {reward for each in rewards for reward in each.values()}
    why = None if rows else _why_without_rows(ended, options)
    if why and options.mask_truncated and any(each.is_truncated for each in ended):
        why += ", or all that do were cut off (mask_truncated)"
    only = next(iter(spread)) if len(spread) == 1 and n_rewarded > 1 else None
    return Lesson(ended, tuple(rows), why, has_spread=len(spread) > 1, only_reward=only)


def _rewards(rollout: EndedRollout, options: LearningOptions) -> dict[int, float]:
    """Return the rewards of a rollout, by call; none for one that is left out.

    One that is of no call counts among those of the group under `WHOLE`, whatever the credit is.
    """
    if rollout.reward is None:
        return {}
    if options.credit == "final":
        return {WHOLE: rollout.reward + rollout.penalty}
    rewards = {order: reward for order, reward in enumerate(rollout.call_rewards) if reward is not None}
    last = len(rollout.call_rewards) - 1
    if last >= 0 and (rollout.end == "failure" or (not rewards and options.credit == "discounted")):
        rewards[last] = rollout.reward  # a failure is what the last call came to
    return rewards or {WHOLE: rollout.reward}


def _advantages(rewards: Sequence[dict[int, float]], options: LearningOptions) -> list[dict[int, float]]:
    groups = [list(each.values()) for each in rewards]
    match options.estimator:
        case "grpo":
            advantages = grpo_advantages(groups, norm_by_std=options.norm_by_std)
        case "rloo":
            advantages = rloo_advantages(groups)
        case _:
            return [{} for _ in rewards]
    return [dict(zip(each, values, strict=True)) for each, values in zip(rewards, advantages, strict=True)]


def _learned_rows(
    rollout: EndedRollout,
    session: int,
    rewards: Mapping[int, float],
    advantages: Mapping[int, float],
    options: LearningOptions,
) -> list[LearnedRow]:
    rows = rollout.made.rows
    learned: list[LearnedRow] = []
    for sample in ([row] for row in rows) if options.advantage == "row" else [rows]:
        credited = _credited(sample, len(rollout.call_rewards), rewards, advantages, options)
        for row in sample:
            answers = tuple(
                answer._replace(reward=credited[answer.order][0], advantage=credited[answer.order][1])
                for answer in row.answers
            )
            mask = _mask(row, rewards, options)
            if any(mask):
                learned.append(
                    LearnedRow(
                        session=session,
                        index=len(learned),
                        prompt_ids=row.prompt_ids,
                        response_ids=row.response_ids,
                        mask=mask,
                        logprobs=row.logprobs,
                        scores=_scores(rollout, row, answers, options),
                        answers=answers,
                        num_turns=len(rollout.call_rewards),
                        versions=row.versions,
                    )
                )
    return learned


def _credited(
    rows: Sequence[Row],
    n: int,
    rewards: Mapping[int, float],
    advantages: Mapping[int, float],
    options: LearningOptions,
) -> dict[int, tuple[float | None, float | None]]:
    """Return what the calls of rows that are one sample are given: of each its reward and its advantage.

    Args:
        rows: All of the rollout, or one of them.
        n: How many calls the rollout has.
        rewards: By call.
        advantages: By call; none where they are found out later.
        options: The credit.
    """
    kept = sorted({answer.order for row in rows for answer in row.answers})
    if options.credit == "final":
        return {order: (rewards[WHOLE] if order == kept[-1] else None, advantages.get(WHOLE)) for order in kept}
    if options.credit == "per_call" or WHOLE in rewards:
        return {order: (rewards.get(order), advantages.get(order)) for order in kept}
    sums = _discounted(advantages, n, options.call_discount)
    return {order: (reward, sums.get(order)) for order, reward in _moved(rewards, kept, options.call_discount).items()}


def _discounted(advantages: Mapping[int, float], n: int, discount: float) -> dict[int, float]:
    """Return of each call the sum of its own advantage and the later ones; nothing where there is none."""
    sums: dict[int, float] = {}
    later = 0.0
    for order in range(n - 1, -1, -1):
        later = later * discount + advantages.get(order, 0.0)
        if sums or order in advantages:
            sums[order] = later
    return sums


def _moved(rewards: Mapping[int, float], kept: Sequence[int], discount: float) -> dict[int, float | None]:
    """Return the reward of each call that is kept; that of one that is not is of the last one kept before it."""
    moved: dict[int, float | None] = dict.fromkeys(kept)
    for order, reward in rewards.items():
        place = bisect_right(kept, order) - 1
        if place >= 0:
            last = kept[place]
            moved[last] = (moved[last] or 0.0) + discount ** (order - last) * reward
    return moved


def _mask(row: Row, rewards: Mapping[int, float], options: LearningOptions) -> list[int]:
    """Return the mask without the answers that no reward judged; where a row is a sample, it is judged as a whole."""
    judged = [_is_judged(answer.order, rewards, options) for answer in row.answers]
    if options.advantage == "row":
        judged = [any(judged)] * len(judged)
    mask = list(row.mask)
    for answer, counts in zip(row.answers, judged, strict=True):
        if not counts:
            mask[answer.start : answer.stop] = [0] * (answer.stop - answer.start)
    return mask


def _is_judged(order: int, rewards: Mapping[int, float], options: LearningOptions) -> bool:
    match options.credit:
        case "final":
            return True
        case "per_call":
            return order in rewards
        case "discounted":
            return order <= max(rewards)


def _scores(rollout: EndedRollout, row: Row, answers: Sequence[Answer], options: LearningOptions) -> list[float]:
    scores = [0.0] * len(row.response_ids)
    if options.credit == "final":
        scores[answers[-1].stop - 1] = rollout.worth or 0.0
        return scores
    for answer in answers:
        if answer.reward is not None:
            scores[answer.stop - 1] = answer.reward
    return scores


def _why_without_rows(rollouts: Sequence[EndedRollout], options: LearningOptions) -> str:
    if all(not each.call_rewards and each.refusal is None for each in rollouts):
        return "none of its rollouts has called the model that is trained; agents call the one that they are given"
    longest = max((prompt for each in rollouts for prompt, _ in each.made.too_long), default=0)
    limit = f": a prompt has {longest} tokens, more than {options.max_prompt_length}" if longest else ""
    return f"none of its rollouts has a row that fits{limit}"


def _why_dropped(rollouts: Sequence[EndedRollout], n_rewarded: int, options: LearningOptions) -> str:
    cause = next((f"; the first without one: {rollout.cause}" for rollout in rollouts if rollout.cause), "")
    return f"{n_rewarded} of {len(rollouts)} rollouts have a reward, {options.min_rewards} are needed{cause}"
