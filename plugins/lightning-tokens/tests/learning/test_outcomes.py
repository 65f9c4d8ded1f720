import math

import pytest
from learning_toys import FAULT, RAISED, add_reward, conversation, options, rollout, spans_of
from lightning_tokens.learning.outcomes import read_rollout

from lightning_core.adapter import LlmProxyTraceToTriplet, TracerTraceToTriplet, TraceToMessages, TraceToTrajectories
from lightning_core.adapter.trajectory import as_trajectory_adapter
from lightning_core.emitter import get_reward_value
from lightning_core.testing.adapter import TraceBuilder
from lightning_core.types import OtelResource, Rollout

CALLS = conversation(2)


def test_a_rollout_is_worth_its_last_reward():
    read = read_rollout(rollout(), spans_of(CALLS, [0.25, 0.75]), options=options())
    assert (read.end, read.reward, read.cause) == ("scored", 0.75, None)
    assert read.call_rewards == (0.25, 0.75)
    assert read.answer_lengths == (2, 2)
    assert len(read.made.rows) == 1


def test_rewards_that_an_agent_reported_teach_nothing_where_its_runner_recorded_one():
    spans = spans_of(CALLS, [50.0, 0.1])
    next(span for span in spans if get_reward_value(span) == 50.0).attributes["agentlightning.reported"] = "live"
    read = read_rollout(rollout(), spans, options=options())
    assert (read.reward, read.call_rewards) == (0.1, (None, 0.1))


def test_objectives_are_combined_by_their_weights():
    spans = spans_of(CALLS, [None, {"right": 1.0, "short": 0.5, "polite": 9.0}])
    read = read_rollout(rollout(), spans, options=options(reward_weights={"right": 2.0, "short": -1.0}))
    assert read.reward == 1.5
    assert read.call_rewards == (None, 1.5)
    assert read_rollout(rollout(), spans, options=options()).reward == 1.0


RIGHT_AND_SHORT = {"right": 2.0, "short": 1.0}


@pytest.mark.parametrize(
    ("reward", "weights", "cause"),
    [
        (None, {}, "the agent gave no reward: return a number, or call emit_reward"),
        ({"right": 1.0}, RIGHT_AND_SHORT, "the last reward has no 'short', which has a weight; it has 'right'"),
        ({"right": math.inf, "short": -math.inf}, RIGHT_AND_SHORT, "right inf, short -inf"),
        (math.nan, {}, "a reward is primary nan, which is not a number to learn from; finite ones up to 1e15 are"),
        (math.inf, {}, "a reward is primary inf, which is not a number to learn from"),
        (-math.inf, {}, "a reward is primary -inf, which is not a number to learn from"),
        (1e16, {}, "a reward is primary 1e+16, which is not a number to learn from"),
    ],
)
def test_a_rollout_without_a_reward_to_learn_from_has_none_rather_than_zero_and_says_why(reward, weights, cause):
    read = read_rollout(rollout(), spans_of(CALLS, [None, reward]), options=options(reward_weights=weights))
    assert (read.end, read.reward) == ("unscored", None)
    assert cause in read.cause


def test_a_failure_is_worth_nothing_unless_a_number_says_so():
    ended = rollout("failed", metadata=RAISED)
    dropped = read_rollout(ended, spans_of(CALLS, [0.5]), options=options())
    assert (dropped.end, dropped.reward) == ("failure", None)
    assert dropped.cause == "ValueError: the tool is not there"
    valued = read_rollout(ended, spans_of(CALLS, [0.5]), options=options(on_failure=-1.0))
    assert (valued.end, valued.reward) == ("failure", -1.0)
    assert not valued.was_scored
    assert len(valued.made.rows) == 1


def test_running_out_of_time_is_a_failure():
    read = read_rollout(rollout("failed", attempt="timeout", timeout_seconds=2.0), [], options=options(on_failure=0.0))
    assert (read.end, read.reward) == ("failure", 0.0)
    assert read.cause == "AgentTimeout: the agent ran longer than 2 s"


@pytest.mark.parametrize("on_failure", ["drop", -1.0])
def test_a_fault_is_left_out_whatever_a_failure_is_worth(on_failure):
    read = read_rollout(
        rollout("failed", metadata=FAULT), spans_of(CALLS, [0.5, 0.5]), options=options(on_failure=on_failure)
    )
    assert (read.end, read.reward, read.made.rows) == ("fault", None, ())
    assert read.cause == "fault: its runner was stopped"


def test_a_cancelled_rollout_and_one_that_no_agent_saw_are_no_failures():
    cancelled = read_rollout(rollout("cancelled", attempt="running"), [], options=options(on_failure=-1.0))
    unseen = Rollout(rollout_id="ro-2", input=1, start_time=0.0, end_time=1.0, status="failed")
    assert cancelled.end == read_rollout(unseen, [], options=options(on_failure=-1.0)).end == "fault"
    assert cancelled.reward is None


def test_a_rollout_that_still_runs_cannot_be_read():
    with pytest.raises(ValueError, match="rollout ro-1 is 'running'; only one that has ended can be read"):
        read_rollout(rollout("running"), [], options=options())


def test_a_broken_reward_is_the_trouble_of_its_rollout_alone():
    trace = TraceBuilder()
    trace.call([1], [2])
    add_reward(trace, 0.5)
    trace.span("agentlightning.annotation", {"agentlightning.reward.0.name": "primary"})
    read = read_rollout(rollout(), trace.spans, options=options())
    assert (read.end, read.reward) == ("unscored", None)
    assert "broken reward" in (read.cause or "")


def test_a_rollout_whose_tokens_were_not_recorded_gives_no_rows_and_says_why():
    trace = TraceBuilder()
    trace.call([1], [2])
    trace.call(None, None)
    add_reward(trace, 1.0)
    read = read_rollout(rollout(), trace.spans, options=options())
    assert (read.reward, read.made.rows) == (1.0, ())
    assert read.refusal is not None
    assert read.refusal.startswith("1 of its answers lack the engine's tokens; the first: the call of span span-2")


BY_PROXY = OtelResource(attributes={"service.name": "lightning-proxy"})


@pytest.mark.parametrize("tokens", [(None, None), ([1, 2, 3, 99], [7])], ids=["without tokens", "with tokens"])
def test_calls_of_another_model_of_the_proxy_are_not_learned_from_and_refuse_nothing(tokens):
    (first, second), trace = CALLS, TraceBuilder()
    trace.call(*first, resource=BY_PROXY)
    helper = {"gen_ai.request.model": "helper", "gen_ai.response.id": "chatcmpl-helper"}
    trace.call(*tokens, resource=BY_PROXY, attributes=helper)
    trace.call(attributes=helper)  # as an instrumentor records it
    add_reward(trace, 0.25)
    trace.call(*second, resource=BY_PROXY)
    add_reward(trace, 1.0)
    read = read_rollout(rollout(), trace.spans, options=options(), other_models={"helper"})
    expected = read_rollout(rollout(), spans_of(CALLS, [0.25, 1.0]), options=options())
    assert read.refusal is None
    assert (read.made, read.call_rewards) == (expected.made, expected.call_rewards)
    assert (read.answer_lengths, read.n_trajectories) == (expected.answer_lengths, 1)


def test_a_call_that_the_proxy_has_not_recorded_is_of_the_policy_whatever_it_asks_for():
    read = read_rollout(rollout(), spans_of(CALLS, [1.0]), options=options(), other_models={"small"})
    assert len(read.made.rows) == 1


def test_a_triplet_adapter_of_0_3_picks_the_same_calls():
    adapted = as_trajectory_adapter(TracerTraceToTriplet(agent_match="writer"))
    trace = TraceBuilder()
    writer = trace.span("agent", {"agent.name": "writer"}, start=0.0, end=100.0)
    critic = trace.span("agent", {"agent.name": "critic"}, start=0.0, end=100.0)
    trace.call([1], [2], parent=writer)
    trace.call([5], [6], parent=critic)
    assert [row.prompt_ids for row in adapted.adapt(trace.spans).rows] == [[1]]


def test_an_adapter_that_makes_no_rows_is_refused():
    own = TraceToTrajectories()
    assert as_trajectory_adapter(own) is own
    assert isinstance(as_trajectory_adapter(LlmProxyTraceToTriplet()), TraceToTrajectories)
    with pytest.raises(
        TypeError, match=r"a TraceToMessages makes no .* 'trajectory' .*TraceToTrajectories and override"
    ):
        as_trajectory_adapter(TraceToMessages())


@pytest.mark.parametrize("base", [TracerTraceToTriplet, LlmProxyTraceToTriplet])
def test_an_adapter_of_the_user_s_is_used_or_refused_but_never_replaced(base):
    class Shortened(base):
        pass

    class OwnRows(TraceToTrajectories):
        pass

    refusal = (
        r"a Shortened makes no training rows, .* or subclass lightning_core\.adapter\.TraceToTrajectories and override"
    )
    with pytest.raises(TypeError, match=refusal):
        as_trajectory_adapter(Shortened())
    own = OwnRows()
    assert as_trajectory_adapter(own) is own


def test_what_is_emitted_between_two_calls_is_summed():
    trace = TraceBuilder()
    add_reward(trace, 9.0)  # of no answer
    for call in CALLS:
        trace.call(*call)
        add_reward(trace, 0.25)
        add_reward(trace, 0.5)
    assert read_rollout(rollout(), trace.spans, options=options()).call_rewards == (0.75, 0.75)


@pytest.mark.parametrize("is_numbered", [True, False])
def test_rewards_find_their_answers_in_whatever_order_spans_came_or_where_no_store_has_numbered_them(is_numbered):
    spans = spans_of(CALLS, [0.25, 0.5, 1.0])
    if is_numbered:
        spans.reverse()
    else:
        spans = [span.model_copy(update={"sequence_id": 0}) for span in spans]
    assert read_rollout(rollout(), spans, options=options()).call_rewards == (0.25, 1.5)


@pytest.mark.parametrize(("late", "expected"), [(0.1, (1.0, 2.0)), (2.0, (None, 3.0))], ids=["a moment", "seconds"])
def test_a_reward_that_reaches_the_store_after_the_next_call_began_is_of_the_call_before(late, expected):
    # Where clocks disagree by seconds, the numbers of the store are all there is.
    (first, second), trace = CALLS, TraceBuilder()
    trace.call(*first, start=0.0, end=1.0)
    trace.call(*second, start=2.0 + late, end=3.0 + late)
    trace.reward(1.0, start=2.0, end=2.0)
    trace.reward(2.0, start=5.0 + late, end=5.0 + late)
    assert read_rollout(rollout(), trace.spans, options=options()).call_rewards == expected


def test_a_reward_that_took_long_to_compute_is_of_the_last_call_that_had_begun_when_it_was_known():
    trace = TraceBuilder()
    for number, call in enumerate(CALLS):
        trace.call(*call, start=10.0 * number, end=10.0 * number + 5.0)
    trace.reward(1.0, start=6.0, end=12.0)
    assert read_rollout(rollout(), trace.spans, options=options()).call_rewards == (None, 1.0)


def test_an_earlier_reward_that_is_no_number_counts_where_earlier_rewards_do():
    spans = spans_of(CALLS, [math.nan, 0.5])
    assert read_rollout(rollout(), spans, options=options()).reward == 0.5
    assert read_rollout(rollout(), spans, options=options(credit="per_call")).end == "unscored"
