"""From the trajectories of one rollout to rows that fit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from lightning_core.adapter import RowCall, Trajectories, Trajectory
from lightning_verl.learning.options import LearningOptions


class Answer(NamedTuple):
    """Where one answer of the model stands in its row, and how good it was. Plain numbers: it travels with the row."""

    order: int
    """Its place among all answers of the rollout, from 0."""
    start: int
    """Where it begins in the row's response, from 0."""
    stop: int
    """Where it ends there; the last token is before it."""
    reward: float | None = None
    """What came after it and before the next one; None for nothing."""
    advantage: float | None = None
    """How much better than expected; None where that is found out later, from a critic's values."""


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence to train on. The lists of the response are of one length; it ends with a token of the model."""

    prompt_ids: list[int] = field(repr=False)
    response_ids: list[int] = field(repr=False)
    mask: list[int] = field(repr=False)
    """1 for a token that the model produced and that is learned from, else 0."""
    logprobs: list[float] | None = field(repr=False)
    """The engine's, 0.0 where masked; None where one of a produced token is missing."""
    answers: tuple[Answer, ...]
    """In the order of the response."""


@dataclass(frozen=True, slots=True)
class RolloutRows:
    """The rows of one rollout, and what is in none."""

    rows: tuple[Row, ...] = ()
    too_long: tuple[tuple[int, int], ...] = ()
    """Of each row that was left out for its prompt, the number of tokens of the prompt and of the response."""
    n_cut: int = 0
    """How many responses were cut."""
    n_without_logprobs: int = 0
    """How many rows were left out because they need log-probabilities and have none."""


def make_rows(trajectories: Trajectories, *, options: LearningOptions) -> RolloutRows:
    """Make the rows of one rollout.

    A prompt that is too long leaves its row out, for a cut prompt is not what the model saw. A response that is too
    long is cut.

    Args:
        trajectories: Of the rollout's last attempt.
        options: The level, the lengths, and whether log-probabilities are needed.
    """
    rows: list[Row] = []
    too_long: list[tuple[int, int]] = []
    n_cut = n_without_logprobs = 0
    for whole in _whole_rows(trajectories, options):
        if len(whole.prompt_ids) > options.max_prompt_length:
            too_long.append((len(whole.prompt_ids), len(whole.response_ids)))
            continue
        row = whole
        if len(whole.response_ids) > options.max_response_length:
            n_cut += 1
            row = _cut(whole, options.max_response_length)
        if row.logprobs is None and options.needs_logprobs:
            n_without_logprobs += 1
        else:
            rows.append(row)
    return RolloutRows(tuple(rows), tuple(too_long), n_cut, n_without_logprobs)


def answers_in_order(trajectories: Trajectories) -> list[RowCall]:
    """Return all answers of a rollout, in the order in which they were asked for."""
    parts = [part for trajectory in trajectories.rows for part in trajectory.calls]
    return sorted(parts, key=_place)


def _whole_rows(trajectories: Trajectories, options: LearningOptions) -> Iterator[Row]:
    order = {_place(part): number for number, part in enumerate(answers_in_order(trajectories))}
    for trajectory in trajectories.rows:
        if options.level == "trajectory":
            answers = tuple(Answer(order[_place(part)], part.start, part.stop) for part in trajectory.calls)
            logprobs = _known(trajectory.logprobs, trajectory.mask)
            yield Row(trajectory.prompt_ids, trajectory.response_ids, trajectory.mask, logprobs, answers)
        else:
            for part in trajectory.calls:
                yield _of_one_call(trajectory, part, order[_place(part)])


def _of_one_call(trajectory: Trajectory, part: RowCall, order: int) -> Row:
    prompt = trajectory.prompt_ids + trajectory.response_ids[: part.start]
    response = trajectory.response_ids[part.start : part.stop]
    mask = [1] * len(response)
    logprobs = _known(trajectory.logprobs[part.start : part.stop], mask)
    return Row(prompt, response, mask, logprobs, (Answer(order, 0, len(response)),))


def _known(logprobs: Sequence[float | None], mask: Sequence[int]) -> list[float] | None:
    if any(value is None for value, produced in zip(logprobs, mask, strict=True) if produced):
        return None
    return [0.0 if value is None else value for value in logprobs]


def _cut(row: Row, length: int) -> Row:
    """Return what remains within a length, up to the last token that the model produced.

    Something does: a response begins with an answer, which has a token.
    """
    kept = [answer for answer in row.answers if answer.start < length]
    length = min(length, kept[-1].stop)
    return replace(
        row,
        response_ids=row.response_ids[:length],
        mask=row.mask[:length],
        logprobs=None if row.logprobs is None else row.logprobs[:length],
        answers=tuple(answer._replace(stop=min(answer.stop, length)) for answer in kept),
    )


def _place(part: RowCall) -> tuple[int, int]:
    return part.call.order, part.choice
