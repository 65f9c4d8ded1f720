import math

import pytest
from hypothesis import given, strategies as st
from learning_toys import Call, conversation, failed, faulty, options, scored
from lightning_tokens.learning.groups import learn_from_group
from lightning_tokens.learning.outcomes import EndedRollout
from lightning_tokens.learning.steps import step_advantages

rewards = st.one_of(st.none(), st.integers(-8, 8).map(lambda eighths: eighths / 8))
shapes = st.sampled_from([conversation(1), conversation(3), [([1], [2]), ([7], [8, 9])], [([1] * 20, [2])]])
ends = st.sampled_from(["scored", "scored", "scored", "failure", "fault"])


@st.composite
def groups(draw) -> tuple[list[EndedRollout], float | str]:
    on_failure = draw(st.sampled_from(["drop", -1.0]))
    told = options(on_failure=on_failure)

    def one() -> EndedRollout:
        calls: list[Call] = draw(shapes)
        end = draw(ends)
        if end == "failure":
            return failed(*calls, told=told)
        return faulty(told) if end == "fault" else scored(draw(rewards), *calls, told=told)

    return [one() for _ in range(draw(st.integers(1, 6)))], on_failure


@given(groups(), st.sampled_from(["grpo", "rloo"]), st.booleans())
def test_a_group_is_learned_from_as_a_whole(group, estimator, norm_by_std):
    rollouts, on_failure = group
    told = options(estimator=estimator, on_failure=on_failure, norm_by_std=norm_by_std)
    lesson = learn_from_group(rollouts, options=told)
    rewarded = [rollout for rollout in rollouts if rollout.reward is not None]
    assert (lesson.dropped is None) == (len(rewarded) > 1 and any(rollout.made.rows for rollout in rewarded))
    best = max((rollout.reward for rollout in rewarded), default=None)
    for row in lesson.rows:
        rollout = rollouts[row.session]
        assert rollout.reward is not None
        assert math.fsum(row.scores) == rollout.reward
        assert len({answer.advantage for answer in row.answers}) == 1
        if rollout.reward == best:
            assert row.answers[0].advantage >= -1e-9
        assert len(row.mask) == len(row.response_ids) == len(row.scores)
    for session in {row.session for row in lesson.rows}:
        of_one = [row for row in lesson.rows if row.session == session]
        assert [row.index for row in of_one] == list(range(len(rollouts[session].made.rows)))


@given(groups())
def test_a_step_weighs_every_rollout_that_has_rows_the_same(group):
    rollouts, on_failure = group
    told = options(on_failure=on_failure)
    rows = learn_from_group(rollouts, options=told).rows
    step = step_advantages(
        keys=[f"u_{row.session}_{row.index}" for row in rows],
        masks=[row.mask for row in rows],
        answers=[row.packed() for row in rows],
        options=told,
    )
    masses: dict[int, float] = {}
    for row, weight in zip(rows, step.weights, strict=True):
        masses[row.session] = masses.get(row.session, 0.0) + weight / len(rows)
    assert list(masses.values()) == pytest.approx([1 / len(masses)] * len(masses) if masses else [])


@given(groups())
def test_the_order_of_the_rollouts_changes_nothing_but_their_places(group):
    rollouts, on_failure = group
    told = options(on_failure=on_failure)

    def found(members):
        lesson = learn_from_group(members, options=told)
        return sorted(
            (row.prompt_ids, row.response_ids, round(answer.advantage, 6))
            for row in lesson.rows
            for answer in row.answers
        )

    assert found(rollouts) == found(rollouts[::-1])
