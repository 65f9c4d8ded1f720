"""Numbers that say how a step, or a validation, went; under the names of agentlightning 0.3 where it has one."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from statistics import fmean

from lightning_core.algorithm.estimates import estimate
from lightning_tokens.learning.groups import Lesson
from lightning_tokens.learning.options import LearningOptions
from lightning_tokens.learning.outcomes import EndedRollout


def training_metrics(lessons: Sequence[Lesson], *, options: LearningOptions) -> dict[str, float]:
    """Describe what one step learns from.

    `training/...` counts rollouts, each once, and rows. `..._before_processing` is of all rows that were recorded,
    `..._after_processing` of those that are trained on. A mean of nothing is left out.

    `training/reward` is the mean of the rewards that agents gave. In `training/reward_w_failures` a failure has the
    value of `on_failure`, where that is a number: it is the mean of what is learned from.

    Args:
        lessons: All groups of the step, with the rows that are trained on.
        options: The level and the lengths.
    """
    rollouts = [rollout for lesson in lessons for rollout in lesson.rollouts]
    rows = [row for lesson in lessons for row in lesson.rows]
    made = [rollout.made for rollout in rollouts]
    n_too_long = sum(len(each.too_long) for each in made)
    n_without_logprobs = sum(each.n_without_logprobs for each in made)
    counts: dict[str, float] = {
        "n_rollouts": len(rollouts),
        "n_rollouts_w_trace": sum(rollout.n_trajectories > 0 for rollout in rollouts),
        "n_rollouts_w_reward": sum(rollout.was_scored for rollout in rollouts),
        "n_rollouts_wo_token_ids": sum(rollout.refusal is not None for rollout in rollouts),
        "n_rollouts_learned": sum(len({row.session for row in lesson.rows}) for lesson in lessons),
        "n_failures": sum(rollout.end == "failure" for rollout in rollouts),
        "n_faults": sum(rollout.end == "fault" for rollout in rollouts),
        "n_truncated_rollouts": sum(rollout.is_truncated for rollout in rollouts),
        "n_groups": len(lessons),
        "n_groups_dropped": sum(lesson.dropped is not None for lesson in lessons),
        "n_groups_wo_spread": sum(not lesson.has_spread for lesson in lessons),
        "n_triplets": sum(len(each.rows) for each in made) + n_too_long + n_without_logprobs,
        "n_triplets_prompt_too_long": n_too_long,
        "n_triplets_wo_logprobs": n_without_logprobs,
        "n_triplets_learned": len(rows),
        "n_truncated_triplets": sum(each.n_cut for each in made),
    }
    if options.level == "trajectory":
        counts["n_unmerged_rollouts"] = sum(rollout.n_trajectories > 1 for rollout in rollouts)
        counts["n_triplets_by_turn"] = sum(len(rollout.answer_lengths) for rollout in rollouts)
        starts = Counter(start for rollout in rollouts for start in rollout.row_starts)
        counts |= {f"n_rows_{start}": count for start, count in starts.items()}
        if traced := counts["n_rollouts_w_trace"]:
            counts["rows_per_rollout"] = starts.total() / traced
        if left_out := sum(rollout.n_left_out for rollout in rollouts):
            counts["n_calls_left_out"] = left_out
    metrics = {f"training/{name}": float(value) for name, value in counts.items()}
    for name, rewards in _rewards(rollouts).items():
        metrics |= {f"training/{name}": fmean(rewards)} if rewards else {}
    if options.level == "trajectory":
        lengths = [length for rollout in rollouts for length in rollout.answer_lengths]
        spread = _spread(lengths)
        metrics |= {f"training/{'avg' if k == 'mean' else k}_response_length_by_turn": v for k, v in spread.items()}
    before = [(len(row.prompt_ids), len(row.response_ids)) for each in made for row in each.rows]
    before += [lengths for each in made for lengths in each.too_long]
    after = [(len(row.prompt_ids), len(row.response_ids)) for row in rows]
    scores = [rollout.worth for rollout in rollouts for _ in rollout.made.rows if rollout.worth is not None]
    metrics |= _of_rows(before, scores, "_before_processing", options)
    metrics |= _of_rows(after, [sum(row.scores) for row in rows], "_after_processing", options)
    advantages = [
        answer.advantage
        for row in rows
        for answer in row.answers
        if answer.advantage is not None
        for _ in range(sum(row.mask[answer.start : answer.stop]))
    ]
    return metrics | _named("critic/advantages", _spread(advantages), "_after_processing")


def validation_metrics(
    rollouts: Sequence[EndedRollout],
    *,
    sources: Sequence[str | None] | None = None,
    tasks: Sequence[Hashable] | None = None,
) -> dict[str, float]:
    """Describe a validation; each rollout counts once, whatever rows it has.

    `val/reward` is the mean over tasks of the mean of the rewards that agents gave for each: a rollout without one is
    counted, and is not a zero. Its 95% confidence interval is `val/reward_low` to `val/reward_high`, where the tasks
    tell: the rollouts of one task are not independent of each other, so they are not samples by themselves. In
    `val/reward_w_failures` a failure has the value of `on_failure`, where that is a number.

    Args:
        rollouts: All of them, of any number.
        sources: Of each rollout, the `data_source` of its sample: what is said of all is said of each source, too.
        tasks: Of each rollout, which task it is of; None where each is of another one.
    """
    owners = list(range(len(rollouts))) if tasks is None else list(tasks)
    named = [None] * len(rollouts) if sources is None else list(sources)
    metrics = _validation("val", rollouts, owners)
    for source in dict.fromkeys(name for name in named if name is not None):
        members = [place for place, name in enumerate(named) if name == source]
        of_source = [rollouts[place] for place in members]
        metrics |= _validation(f"val/{source}", of_source, [owners[place] for place in members])
    return metrics


def _validation(prefix: str, rollouts: Sequence[EndedRollout], tasks: Sequence[Hashable]) -> dict[str, float]:
    traced = [rollout for rollout in rollouts if rollout.answer_lengths]
    metrics: dict[str, float] = {
        "n_rollouts": len(rollouts),
        "n_rollouts_w_trace": sum(rollout.n_trajectories > 0 for rollout in rollouts),
        "n_rollouts_w_reward": sum(rollout.was_scored for rollout in rollouts),
        "n_failures": sum(rollout.end == "failure" for rollout in rollouts),
        "n_faults": sum(rollout.end == "fault" for rollout in rollouts),
    }
    for name, means in _rewards(rollouts, tasks).items():
        metrics |= {name: fmean(means)} if means else {}
        measured = estimate(means) if name == "reward" else None
        if measured is not None and measured.low is not None and measured.high is not None:
            metrics |= {"reward_low": measured.low, "reward_high": measured.high}
    if traced:
        metrics["mean_response_length"] = fmean(fmean(rollout.answer_lengths) for rollout in traced)
        metrics["sum_response_length"] = fmean(sum(rollout.answer_lengths) for rollout in traced)
        metrics["turn_count"] = fmean(len(rollout.call_rewards) for rollout in traced)
    return {f"{prefix}/{name}": float(value) for name, value in metrics.items()}


def _rewards(rollouts: Sequence[EndedRollout], tasks: Sequence[Hashable] | None = None) -> dict[str, list[float]]:
    """Return the rewards, without failures and with them; with tasks, the mean of each task that has one."""
    owners = range(len(rollouts)) if tasks is None else tasks
    means: dict[str, list[float]] = {}
    for name, ends in (("reward", ("scored",)), ("reward_w_failures", ("scored", "failure"))):
        by_task: dict[Hashable, list[float]] = {}
        for task, rollout in zip(owners, rollouts, strict=True):
            if rollout.reward is not None and rollout.end in ends:
                by_task.setdefault(task, []).append(rollout.reward)
        means[name] = [fmean(rewards) for rewards in by_task.values()]
    return means


def _of_rows(
    lengths: Sequence[tuple[int, int]], scores: Sequence[float], suffix: str, options: LearningOptions
) -> dict[str, float]:
    prompts, responses = [prompt for prompt, _ in lengths], [response for _, response in lengths]
    metrics = _named("critic/score", _spread(scores), suffix)
    for name, each, limit in (
        ("prompt_length", prompts, options.max_prompt_length),
        ("response_length", responses, options.max_response_length),
    ):
        metrics |= _named(name, _spread(each), suffix)
        if each:
            metrics[f"{name}/clip_ratio{suffix}"] = sum(length >= limit for length in each) / len(each)
    return metrics


def _spread(values: Iterable[float]) -> dict[str, float]:
    every = list(values)
    return {"mean": fmean(every), "max": float(max(every)), "min": float(min(every))} if every else {}


def _named(name: str, spread: dict[str, float], suffix: str) -> dict[str, float]:
    return {f"{name}/{kind}{suffix}": value for kind, value in spread.items()}
