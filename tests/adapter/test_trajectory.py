import copy
import random

import pytest

from lightning_core.adapter import TraceToTrajectories, Trajectories
from lightning_core.testing.adapter import TraceBuilder
from lightning_core.types import Span


def rows_of(*calls: tuple[list[int], list[int]]) -> list[tuple[list[int], list[int], list[int]]]:
    """Merge calls given as prompt and response; return each row's prompt, response and mask."""
    trace = TraceBuilder()
    for prompt, response in calls:
        trace.call(prompt, response)
    return told(adapted(trace.spans))


def adapted(spans: list[Span], **options) -> Trajectories:
    return TraceToTrajectories(**options).adapt(spans)


def told(result: Trajectories) -> list[tuple[list[int], list[int], list[int]]]:
    return [(row.prompt_ids, row.response_ids, row.mask) for row in result.rows]


def test_continuous_calls_are_one_row_and_what_came_in_between_is_masked():
    rows = rows_of(([1], [2, 3]), ([1, 2, 3, 9, 9], [4]), ([1, 2, 3, 9, 9, 4, 8], [5, 6]))
    assert rows == [([1], [2, 3, 9, 9, 4, 8, 5, 6], [1, 1, 0, 0, 1, 0, 1, 1])]


def test_a_prompt_that_continues_nothing_begins_a_new_row():
    assert rows_of(([1], [2]), ([9], [10])) == [([1], [2], [1]), ([9], [10], [1])]


def test_a_prompt_that_differs_in_the_last_sampled_token_begins_a_new_row():
    assert rows_of(([1], [2, 3]), ([1, 2, 4], [5])) == [([1], [2, 3], [1, 1]), ([1, 2, 4], [5], [1])]


def test_of_equal_rows_the_newest_is_continued():
    trace = TraceBuilder()
    trace.call([1], [2])
    trace.call([1], [2])
    trace.call([1, 2, 7], [3])
    first, second = adapted(trace.spans).rows
    assert [part.call.span_id for part in first.calls] == ["span-1"]
    assert [part.call.span_id for part in second.calls] == ["span-2", "span-3"]


def test_of_sub_agents_that_branch_from_one_prefix_the_first_continues_and_no_token_is_trained_twice():
    rows = rows_of(([1], [2]), ([1, 2, 7], [3]), ([1, 2, 8], [4]), ([1, 2, 8, 4, 9], [5]))
    assert rows == [([1], [2, 7, 3], [1, 0, 1]), ([1, 2, 8], [4, 9, 5], [1, 0, 1])]


def test_each_of_several_choices_is_sampled_and_the_one_that_was_used_goes_on():
    trace = TraceBuilder()
    trace.call([1], [[2], [3, 4]])
    trace.call([1, 3, 4, 8], [5])
    result = adapted(trace.spans)
    assert told(result) == [([1], [2], [1]), ([1], [3, 4, 8, 5], [1, 1, 0, 1])]
    assert [part.choice for part in result.rows[1].calls] == [1, 0]


def test_an_empty_answer_is_refused_and_the_next_try_goes_on_without_it():
    trace = TraceBuilder()
    trace.call([1], [2])
    trace.call([1, 2, 8], [])
    trace.call([1, 2, 8], [3])
    result = adapted(trace.spans)
    assert told(result) == [([1], [2, 8, 3], [1, 0, 1])]
    assert [(refused.reason, refused.call.span_id) for refused in result.refused] == [("empty_answer", "span-2")]
    assert not result.lacks_token_ids


def test_a_failed_call_is_refused_with_its_cause_even_when_it_has_tokens():
    trace = TraceBuilder()
    trace.call([1], [2], error="connection reset")
    trace.call([1], [3])
    result = adapted(trace.spans)
    assert told(result) == [([1], [3], [1])]
    assert [refused.reason for refused in result.refused] == ["failed"]
    assert result.refused[0].detail == "the call of span span-1 is in no row: it failed: connection reset"


@pytest.mark.parametrize(
    ("prompt", "response", "missing"), [(None, [2], "the prompt"), ([], [2], "the prompt"), ([1], None, "choice 0")]
)
def test_a_call_without_the_engines_token_ids_is_refused_and_the_others_are_kept(prompt, response, missing):
    trace = TraceBuilder()
    trace.call([1], [2])
    trace.call(prompt, response)
    trace.call([1, 2, 8], [3])
    result = adapted(trace.spans)
    assert told(result) == [([1], [2, 8, 3], [1, 0, 1])]
    assert result.lacks_token_ids
    assert [refused.detail for refused in result.refused] == [
        f"the call of span span-2 is in no row: no token ids of {missing} were recorded"
    ]


def test_damaged_token_ids_are_refused_wherever_the_damage_is():
    trace = TraceBuilder()
    trace.call([1, "2", 3], [4])
    trace.call([1], [2, None, 3])
    trace.call([1], [2])
    trace.call([1, [2], 3], [4])
    result = adapted(trace.spans)
    assert told(result) == [([1], [2], [1])]
    assert [refused.reason for refused in result.refused] == ["bad_token_ids"] * 3


def test_log_probabilities_stand_where_the_engine_gave_them():
    trace = TraceBuilder()
    trace.call([1], [2, 3], attributes={"response_logprobs": [-0.5, -0.25]})
    trace.call([1, 2, 3, 9], [4])
    trace.call([1, 2, 3, 9, 4], [5, 6], attributes={"logprobs.content": '[{"logprob": -1.0}, {"logprob": -2.0}]'})
    (row,) = adapted(trace.spans).rows
    assert row.logprobs == [-0.5, -0.25, None, None, -1.0, -2.0]


def test_log_probabilities_that_are_not_one_a_token_are_not_used():
    trace = TraceBuilder()
    trace.call([1], [2, 3], attributes={"response_logprobs": [-0.5]})
    (row,) = adapted(trace.spans).rows
    assert row.logprobs == [None, None]


def test_each_call_of_a_row_keeps_its_rewards_its_part_and_its_spans():
    trace = TraceBuilder()
    trace.call([1], [2])
    trace.reward(0.25)
    trace.call([1, 2, 8], [3, 4])
    named = {"name": ["score", "cost"], "value": [1.0, -3.0]}
    trace.span(
        "agentlightning.annotation",
        {f"agentlightning.reward.{i}.{key}": named[key][i] for i in (0, 1) for key in named},
    )
    result = adapted(trace.spans)
    (row,) = result.rows
    assert row.rewards == (0.25, 1.0)
    assert {reward.name: reward.value for reward in row.calls[1].rewards} == {"score": 1.0, "cost": -3.0}
    assert [(part.start, part.stop) for part in row.calls] == [(0, 1), (2, 4)]
    assert [span.span_id for span in row.spans] == ["span-1", "span-3"]
    assert result.final_reward == 1.0


def test_a_reward_that_was_numbered_after_the_next_call_began_is_of_the_call_before():
    trace = TraceBuilder()
    trace.call([1], [2], start=100.0, sequence_id=1)
    trace.call([7], [8], start=101.004, sequence_id=2)
    trace.reward(0.25, start=101.002, end=101.002, sequence_id=3)
    trace.reward(0.5, start=102.0, sequence_id=4)
    assert [row.rewards for row in adapted(trace.spans).rows] == [(0.25,), (0.5,)]


def test_clocks_that_are_apart_do_not_move_a_reward():
    trace = TraceBuilder()
    trace.call([1], [2], start=100.0, sequence_id=1)
    trace.call([7], [8], start=101.0, sequence_id=2)
    trace.reward(0.25, start=99.5, end=99.5, sequence_id=3)
    assert [row.rewards for row in adapted(trace.spans).rows] == [(None,), (0.25,)]


def test_of_spans_that_no_store_has_numbered_the_times_decide_about_rewards():
    trace = TraceBuilder()
    trace.call([1], [2], sequence_id=0)
    trace.reward(0.25, sequence_id=0)
    trace.call([5], [6], sequence_id=0)
    trace.reward(0.5, sequence_id=0)
    assert [row.rewards for row in adapted(trace.spans[::-1]).rows] == [(0.25,), (0.5,)]


def test_only_the_wanted_agents_calls_are_in_rows_and_no_judges():
    trace = TraceBuilder()
    root = trace.span("session", start=0.0, end=1000.0)
    planner = trace.span("agent", {"agent.name": "planner"}, parent=root, start=1.0, end=100.0)
    writer = trace.span("agent", {"agent.name": "writer"}, parent=root, start=200.0, end=300.0)
    trace.call([1], [2], parent=planner, start=2.0)
    trace.call([5], [6], parent=writer, start=201.0)
    grading = trace.span(
        "agentlightning.operation", {"agentlightning.operation.name": "agentlightning.reward"}, parent=planner
    )
    trace.call([7], [8], parent=grading)
    assert told(adapted(trace.spans, agent_match="plan")) == [([1], [2], [1])]
    assert told(adapted(trace.spans)) == [([1], [2], [1]), ([5], [6], [1])]
    assert len(adapted(trace.spans, exclude_llm_call_in_reward=False).rows) == 3


def test_a_broken_pattern_is_refused_when_the_adapter_is_made():
    with pytest.raises(ValueError, match=r"agent_match='\(' is not a regular expression: "):
        TraceToTrajectories(agent_match="(")


def test_token_ids_may_be_lists_tuples_or_text():
    trace = TraceBuilder()
    trace.call((1,), (2,))
    trace.call("[1, 2, 8]", "[3]")
    trace.call([1, 2, 8, 3], [4])
    assert told(adapted(trace.spans)) == [([1], [2, 8, 3, 4], [1, 0, 1, 1])]


def test_rows_are_the_callers_own():
    trace = TraceBuilder()
    trace.call([1], [2])
    before = copy.deepcopy(trace.spans)
    (row,) = adapted(trace.spans).rows
    row.prompt_ids.append(0)
    row.response_ids.append(0)
    assert trace.spans == before
    assert told(adapted(trace.spans)) == [([1], [2], [1])]


@pytest.mark.parametrize(
    ("first", "second"),
    [(([1, *[0] * 99], [5]), ([2, *[0] * 99], [5])), (([1], [2, *[0] * 99]), ([1], [3, *[0] * 99]))],
)
def test_a_row_is_continued_by_its_own_tokens_only_however_far_away_others_differ(first, second):
    trace = TraceBuilder()
    trace.call(*first)
    prompt, answer = second
    trace.call([*prompt, *answer, 7], [8])
    assert [len(row.calls) for row in adapted(trace.spans).rows] == [1, 1]


def test_many_branches_of_a_long_prefix_each_give_a_row():
    numbers = random.Random(0)
    prefix = [numbers.randrange(1000) for _ in range(2_000)]
    trace = TraceBuilder()
    for branch in range(200):
        trace.call([*prefix, branch], [1])
    for branch in range(200):
        trace.call([*prefix, branch, 1, 7], [2])
    result = adapted(trace.spans)
    assert len(result.rows) == 200
    assert all(row.response_ids == [1, 7, 2] for row in result.rows)
