import pytest
from hypothesis import given, strategies as st
from learning_toys import Call, options, spans_of
from lightning_tokens.learning.rows import RolloutRows, make_rows

from lightning_core.adapter import TraceToTrajectories
from lightning_core.testing.adapter import TraceBuilder

TWO_TURNS: list[Call] = [([1], [2, 3]), ([1, 2, 3, 9, 9], [4])]


def rows_of(calls: list[Call], **changes) -> RolloutRows:
    return make_rows(TraceToTrajectories().adapt(spans_of(calls)), options=options(**changes))


def told(made: RolloutRows) -> list[tuple[list[int], list[int], list[int]]]:
    return [(row.prompt_ids, row.response_ids, row.mask) for row in made.rows]


def test_a_trajectory_is_one_row_and_what_came_in_between_is_masked():
    made = rows_of(TWO_TURNS)
    assert told(made) == [([1], [2, 3, 9, 9, 4], [1, 1, 0, 0, 1])]
    assert [tuple(answer)[:3] for answer in made.rows[0].answers] == [(0, 0, 2), (1, 4, 5)]


def test_a_transition_is_a_row_with_the_whole_prompt_that_the_model_saw():
    made = rows_of(TWO_TURNS, level="transition")
    assert told(made) == [([1], [2, 3], [1, 1]), ([1, 2, 3, 9, 9], [4], [1])]
    assert [row.answers[0].order for row in made.rows] == [0, 1]


def test_answers_are_numbered_in_the_order_of_the_calls_not_of_the_rows():
    made = rows_of([([1], [2]), ([7], [8]), ([1, 2, 5], [3])])
    assert [[answer.order for answer in row.answers] for row in made.rows] == [[0, 2], [1]]


def test_choices_of_one_call_are_rows_of_their_own_and_have_its_number():
    trace = TraceBuilder()
    trace.call([1], [[2], [3, 4]])
    trace.call([1, 2, 9], [5])
    made = make_rows(TraceToTrajectories().adapt(trace.spans), options=options())
    assert told(made) == [([1], [2, 9, 5], [1, 0, 1]), ([1], [3, 4], [1, 1])]
    assert [[answer.order for answer in row.answers] for row in made.rows] == [[0, 1], [0]]


def versions_of(*calls: tuple[list[int], list[int], tuple[str, ...]], **changes) -> list[tuple[int, int] | None]:
    """Return the versions of the rows of calls, of each of which is told with which weights it began and ended."""
    trace = TraceBuilder()
    for prompt, answer, weights in calls:
        names = ("agentlightning.weight_version", "agentlightning.weight_version.end")
        trace.call(prompt, answer, attributes=dict(zip(names, weights, strict=False)))
    made = make_rows(TraceToTrajectories().adapt(trace.spans), options=options(**changes))
    return [row.versions for row in made.rows]


def test_a_row_has_the_oldest_and_the_newest_weights_of_its_own_calls():
    calls = (([1], [2], ("3",)), ([7], [8], ("5",)), ([1, 2, 9], [4], ("3", "4")))
    assert versions_of(*calls) == [(3, 4), (5, 5)]
    assert versions_of(*calls, level="transition") == [(3, 3), (3, 4), (5, 5)]


def test_what_was_cut_off_a_row_does_not_make_it_newer():
    calls = (([1], [2], ("3",)), ([1, 2, 9], [4], ("4",)))
    assert versions_of(*calls, max_response_length=2) == [(3, 3)]


@pytest.mark.parametrize("weights", [(), ("new",)])
def test_a_row_one_of_whose_calls_does_not_say_its_weights_has_none(weights):
    calls = (([1], [2], ("3",)), ([1, 2, 9], [4], weights))
    assert versions_of(*calls) == [None]
    assert versions_of(*calls, level="transition") == [(3, 3), None]


def test_a_prompt_that_is_too_long_leaves_its_row_out_and_is_counted():
    made = rows_of([([1] * 4, [2]), ([3] * 5, [6, 7])], max_prompt_length=4)
    assert told(made) == [([1] * 4, [2], [1])]
    assert made.too_long == ((5, 2),)


def test_a_response_that_is_too_long_is_cut_and_counted():
    made = rows_of([([1], [2, 3, 4])], max_response_length=2)
    assert told(made) == [([1], [2, 3], [1, 1])]
    assert made.n_cut == 1
    assert tuple(made.rows[0].answers[0])[:3] == (0, 0, 2)


def test_a_cut_row_ends_with_a_token_of_the_model():
    made = rows_of(TWO_TURNS, max_response_length=4)
    assert told(made) == [([1], [2, 3], [1, 1])]
    assert len(made.rows[0].answers) == 1


def test_log_probabilities_stand_at_their_tokens_and_are_zero_in_between():
    trace = TraceBuilder()
    trace.call([1], [2], attributes={"response_logprobs": [-0.5]})
    trace.call([1, 2, 9], [3], attributes={"response_logprobs": [-0.25]})
    trajectories = TraceToTrajectories().adapt(trace.spans)
    made = make_rows(trajectories, options=options(needs_logprobs=True))
    assert made.rows[0].logprobs == [-0.5, 0.0, -0.25]


def test_a_row_without_log_probabilities_is_left_out_and_counted_where_they_are_needed():
    trace = TraceBuilder()
    trace.call([1], [2], attributes={"response_logprobs": [-0.5]})
    trace.call([7], [8])
    trajectories = TraceToTrajectories().adapt(trace.spans)
    made = make_rows(trajectories, options=options(needs_logprobs=True))
    assert told(made) == [([1], [2], [1])]
    assert made.n_without_logprobs == 1
    assert len(make_rows(trajectories, options=options()).rows) == 2


calls = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.lists(st.integers(0, 2), min_size=1, max_size=6)),
    max_size=6,
)


@given(calls, st.integers(1, 6), st.integers(1, 8), st.sampled_from(["transition", "trajectory"]))
def test_every_row_fits_ends_with_the_model_and_every_other_one_is_counted(calls, prompt, response, level):
    made = rows_of(calls, level=level, max_prompt_length=prompt, max_response_length=response)
    whole = rows_of(calls, level=level, max_prompt_length=99, max_response_length=99)
    for row in made.rows:
        assert len(row.prompt_ids) <= prompt
        assert len(row.response_ids) == len(row.mask) <= response
        assert row.mask[-1] == 1
        covered = [place for answer in row.answers for place in range(answer.start, answer.stop)]
        assert covered == [place for place, kept in enumerate(row.mask) if kept]
    assert len(made.rows) + len(made.too_long) == len(whole.rows)
    assert whole.too_long == ()


@given(calls)
def test_both_levels_train_the_same_tokens(calls):
    def trained(level):
        rows = rows_of(calls, level=level, max_prompt_length=99, max_response_length=99).rows
        parts = [(answer, row.response_ids[answer.start : answer.stop]) for row in rows for answer in row.answers]
        return sorted((answer.order, ids) for answer, ids in parts)

    assert trained("transition") == trained("trajectory")
