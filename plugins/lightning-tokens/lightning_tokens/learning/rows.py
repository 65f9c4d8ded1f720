"""From the trajectories of one rollout to rows that fit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from lightning_core.adapter import ModelCall, RowCall, Trajectories, Trajectory
from lightning_core.types import Span
from lightning_tokens.learning.options import LearningOptions

Versions = tuple[int, int]
"""The oldest and the newest weights of some calls, by the step that made them."""

_VERSIONS = ("agentlightning.weight_version", "agentlightning.weight_version.end")
"""Where a call's span has those that it began with, and those that it ended with, where these are others."""


class Answer(NamedTuple):
    """Where one answer of the model stands in its row, and how good it was. Plain numbers: it travels with the row."""

    order: int
    """The place of its call among those of the rollout, from 0; several choices of one call share it."""
    start: int
    """Where it begins in the row's response, from 0."""
    stop: int
    """Where it ends there; the last token is before it."""
    reward: float | None = None
    """What came after its call and before the next one; None for nothing."""
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
    versions: Versions | None = None
    """The weights that its answers were sampled with; None where one of their calls does not say."""


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
    longest: int = 0
    """The tokens of the longest response, before any was cut, of rows whose prompt fits; with its prompt, where
    `overlong_counts_prompt`."""


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
    n_cut = n_without_logprobs = longest = 0
    for whole, calls in _whole_rows(trajectories, options):
        if len(whole.prompt_ids) > options.max_prompt_length:
            too_long.append((len(whole.prompt_ids), len(whole.response_ids)))
            continue
        counted = len(whole.prompt_ids) if options.overlong_counts_prompt else 0
        row, longest = whole, max(longest, counted + len(whole.response_ids))
        if len(whole.response_ids) > options.max_response_length:
            n_cut += 1
            row = _cut(whole, options.max_response_length)
        if row.logprobs is None and options.needs_logprobs:
            n_without_logprobs += 1
        else:
            rows.append(replace(row, versions=_versions(calls[: len(row.answers)])))
    return RolloutRows(tuple(rows), tuple(too_long), n_cut, n_without_logprobs, longest)


def answers_in_order(trajectories: Trajectories) -> list[RowCall]:
    """Return all answers of a rollout, in the order in which they were asked for."""
    parts = [part for trajectory in trajectories.rows for part in trajectory.calls]
    return sorted(parts, key=lambda part: (part.call.order, part.choice))


def _whole_rows(trajectories: Trajectories, options: LearningOptions) -> Iterator[tuple[Row, list[ModelCall]]]:
    """Give each row, whatever its length, with the call of each of its answers."""
    calls = dict.fromkeys(part.call.order for part in answers_in_order(trajectories))
    number = {order: place for place, order in enumerate(calls)}
    for trajectory in trajectories.rows:
        if options.level == "trajectory":
            answers = tuple(Answer(number[part.call.order], part.start, part.stop) for part in trajectory.calls)
            logprobs = _known(trajectory.logprobs, trajectory.mask)
            row = Row(trajectory.prompt_ids, trajectory.response_ids, trajectory.mask, logprobs, answers)
            yield row, [part.call for part in trajectory.calls]
        else:
            for part in trajectory.calls:
                yield _of_one_call(trajectory, part, number[part.call.order]), [part.call]


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


def _versions(calls: Sequence[ModelCall]) -> Versions | None:
    of_calls = [[version for span in call.spans for version in _versions_in(span)] for call in calls]
    if not all(of_calls):
        return None
    versions = [version for of_call in of_calls for version in of_call]
    return min(versions), max(versions)


def _versions_in(span: Span) -> list[int]:
    values = (span.attributes.get(name) for name in _VERSIONS)
    return [int(version) for version in values if isinstance(version, str) and version.isdecimal()]
