"""What a search does with the runners, the model and the store."""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from gepa_toys import FIRST, VAL, Client, ToyRun, quality, succeed_where_easy

from lightning_core import PromptTemplate
from lightning_core.emitter import emit_message
from lightning_core.errors import AlgorithmError, Fault, NoRewards
from lightning_core.types import AttemptedRollout


async def test_a_better_prompt_is_found_and_is_the_latest_version() -> None:
    run = ToyRun()
    result = await run.fit(max_metric_calls=200)
    found = run.found
    best = found.best_prompts["main"]
    assert quality(best.template) > quality(FIRST)
    assert found.gain is not None
    assert result.metrics["val_gain"] == found.gain.difference > 0
    assert result.metrics["val_reward_initial"] == pytest.approx(0.2)
    assert result.metrics["val_samples"] == len(VAL)
    latest = await run.store.get_latest_resources()
    assert latest is not None
    assert latest.resources == result.best_resources == {"main": best}


async def test_what_is_better_on_training_samples_alone_is_not_the_best() -> None:
    def reward(template: str, task: Any) -> float:
        return (
            min(1.0, template.count("Hm.") / 10)
            if task["question"].startswith("train")
            else float("Hm." not in template)
        )

    run = ToyRun(client=Client(lambda request, seed: "Hm. " * (1 + request.count("Hm.")) + FIRST), reward=reward)
    result = await run.fit(perfect_score=None)
    assert len(run.found.history) > 1
    assert result.best_resources == {"main": PromptTemplate(template=FIRST)}


@pytest.mark.parametrize("limit", [40, 50, 77])
async def test_the_most_rollouts_are_never_exceeded(limit: int) -> None:
    run = ToyRun()
    result = await run.fit(max_metric_calls=limit, n_proposals=2)
    assert len(run.rollouts) == result.metrics["metric_calls"] <= limit
    assert result.status == "succeeded"


@pytest.mark.parametrize(("limit", "useless"), [(27, 2), (60, 14)], ids=["too small", "used up"])
async def test_a_limit_that_ends_the_first_whole_try_is_no_success(limit: int, useless: int) -> None:
    texts = iter([FIRST] * useless)  # each costs a minibatch of 3
    rewrite = Client(lambda request, seed: next(texts, "Think first. {question}"))
    run = ToyRun(client=rewrite, reward=lambda template, task: float("Think" in template))
    with pytest.raises(
        AlgorithmError, match=f"max_metric_calls is {limit}, and not one proposal .*; raise it, or give"
    ):
        await run.fit(max_metric_calls=limit)
    assert len(run.rollouts) <= limit


async def test_a_batch_goes_to_all_runners_at_once() -> None:
    together = asyncio.Event()
    running = 0

    async def wait_for_the_others(rollout: AttemptedRollout) -> None:
        nonlocal running
        if rollout.mode != "val" or together.is_set():
            return
        running += 1
        if running == len(VAL):
            together.set()
        await asyncio.wait_for(together.wait(), timeout=20)

    run = ToyRun(before=wait_for_the_others, n_runners=len(VAL))
    assert (await run.fit()).status == "succeeded"
    assert together.is_set()


async def test_proposals_of_an_iteration_are_made_and_tried_at_once() -> None:
    asked = asyncio.Event()

    async def wait_for_the_others() -> None:
        if len(run.client.requests) == 3:
            asked.set()
        await asyncio.wait_for(asked.wait(), timeout=20)

    run = ToyRun()
    run.client.before = wait_for_the_others
    result = await run.fit(n_proposals=3, max_metric_calls=40)
    assert result.metrics["reflection_calls"] >= 3


async def test_each_candidate_is_a_version_with_its_parent() -> None:
    run = ToyRun()
    await run.fit(max_metric_calls=120)
    history = run.found.history
    versions = {each.resources_id: each for each in await run.store.query_resources()}
    assert len(versions) == len(history) > 3
    assert versions[history[0].resources_id].parent_id is None
    for candidate in history[1:]:
        assert candidate.parent is not None
        parent = history[candidate.parent]
        assert versions[candidate.resources_id].parent_id == parent.resources_id
        removed = set(parent.texts["main"].split("\n")) - set(candidate.texts["main"].split("\n"))
        assert not removed  # an edit adds a line to its parent


async def test_the_model_reads_the_task_the_messages_and_the_reward_of_training_runs_alone() -> None:
    run = ToyRun()
    await run.fit()
    assert run.client.requests
    for request in run.client.requests:
        assert "## Task" in request
        assert "I was asked: train" in request
        assert "## Reward\n0" in request
        assert "keep every such placeholder" in request
        assert "{question}" in request
        assert "val " not in request


async def test_the_model_reads_why_a_run_failed() -> None:
    def fail_at_times(template: str, task: Any) -> float:
        if task["difficulty"] > 0.5:
            emit_message("I looked in vain.")
            raise LookupError("no such product")
        return 0.5

    run = ToyRun(reward=fail_at_times)
    result = await run.fit()
    assert any("## Failure\nLookupError: no such product" in request for request in run.client.requests)
    assert any("I looked in vain." in request for request in run.client.requests)
    assert result.metrics["lost"] > 0
    # A failure is not among the rewards that are reported.
    assert result.metrics["val_reward"] == 0.5


PROMPTS = {"plan": PromptTemplate(template="Plan: {question}"), "answer": PromptTemplate(template="Say: {question}")}


async def test_several_prompts_are_tuned_at_once() -> None:
    run = ToyRun(resources={**PROMPTS})
    await run.fit(max_metric_calls=300)
    history = run.found.history
    for name in PROMPTS:
        assert {each.texts[name] for each in history} > {PROMPTS[name].template}
    together = ToyRun(resources={**PROMPTS})
    await together.fit(module_selector="all")
    first, second, *_ = together.found.history
    assert all(first.texts[name] != second.texts[name] for name in PROMPTS)


@pytest.mark.parametrize(
    ("text", "counted", "reason"),
    [
        ("Answer well.", "rejected", "placeholder 'question' is missing"),
        ("{question} {context}", "rejected", "placeholder 'context' is new"),
        (FIRST, "duplicates", None),
    ],
)
async def test_a_text_that_cannot_be_used_costs_no_rollout(text: str, counted: str, reason: str | None) -> None:
    run = ToyRun(client=Client(lambda request, seed: f"```\n{text}\n```"))
    result = await run.fit(max_metric_calls=40)
    assert {template for _, template, _ in run.rollouts} == {FIRST}
    assert result.metrics[counted] == result.metrics["reflection_calls"] == 10
    assert run.found.rejections == ({} if reason is None else {reason: 10})


async def test_an_answer_that_is_cut_off_is_a_lost_proposal() -> None:
    run = ToyRun()
    run.client.finish_reason = "length"
    result = await run.fit(max_metric_calls=40)
    assert result.status == "succeeded"
    assert result.metrics["lost_proposals"] == 10


async def test_a_model_out_of_reach_ends_the_search_and_the_next_one_pays_for_no_answer_again() -> None:
    async def break_down() -> None:
        if len(run.client.requests) > 3:
            raise ConnectionError("the line is dead")

    run, whole = ToyRun(), ToyRun()
    expected = await whole.fit()
    run.client.before = break_down
    with pytest.raises(AlgorithmError, match="gave no answer: ConnectionError: the line is dead"):
        await run.fit()
    run.client.before = None
    result = await run.fit()
    assert (result.metrics, result.best_resources) == (expected.metrics, expected.best_resources)
    assert len(run.client.requests) == len(whole.client.requests) + 1
    assert sorted(run.rollouts, key=str) == sorted(whole.rollouts, key=str)


async def test_a_fault_that_stays_ends_the_search_with_its_cause_and_is_run_again_by_the_next_one() -> None:
    is_down = True

    async def lose_a_sample(rollout: AttemptedRollout) -> None:
        if is_down and rollout.input["question"] == "val 3":
            raise Fault("the model's server went away")

    run, whole = ToyRun(before=lose_a_sample), ToyRun()
    expected = await whole.fit()
    with pytest.raises(AlgorithmError, match=r"faults ended 1 of 10 rollouts.*the model's server went away") as caught:
        await run.fit()
    assert "can be resumed" in str(caught.value)
    with pytest.raises(AlgorithmError, match="the model's server went away"):
        await run.fit()
    is_down = False
    result = await run.fit()
    assert (result.metrics, result.best_resources) == (expected.metrics, expected.best_resources)
    done = await run.store.query_rollouts(status_in=["succeeded"])
    assert len(done) == len(whole.rollouts)


async def test_first_prompts_that_get_no_reward_end_the_search_and_are_tried_again_by_the_next_one() -> None:
    is_broken = True

    async def fail(rollout: AttemptedRollout) -> None:
        if is_broken:
            raise PermissionError("no key")

    run = ToyRun(before=fail)
    with pytest.raises(NoRewards, match=r"the first prompt on the val_dataset: none of 10 rollouts.*no key"):
        await run.fit()
    is_broken = False
    assert (await run.fit()).metrics["val_samples"] == len(VAL)


async def test_rewards_above_the_perfect_one_are_refused_and_can_be_allowed() -> None:
    with pytest.raises(AlgorithmError, match=r"a reward is 7, and perfect_score is 1: .*to none"):
        await ToyRun(reward=lambda template, task: 7.0).fit()
    result = await ToyRun(reward=lambda template, task: 7.0).fit(perfect_score=None)
    assert result.metrics["val_reward"] == 7.0


async def test_a_failure_is_never_better_than_a_reward() -> None:
    def reward(template: str, task: Mapping[str, Any]) -> float:
        if "Be polite." in template:
            raise ValueError("no answer")
        return -1 + 0.5 * succeed_where_easy(template, task)

    with pytest.raises(AlgorithmError, match=r"a reward is -1, and failure_score is 0: .* Set failure_score to"):
        await ToyRun(reward=reward).fit(perfect_score=0.0)
    result = await ToyRun(reward=reward).fit(perfect_score=0.0, failure_score=-1.0)
    assert "Be polite." not in result.best_resources["main"].template


async def test_a_search_ends_when_the_best_is_perfect() -> None:
    run = ToyRun(reward=lambda template, task: 1.0)
    result = await run.fit()
    assert len(run.rollouts) == len(VAL)
    assert result.metrics["val_reward"] == 1.0


async def test_a_cancelled_search_leaves_no_thread(nothing_left_running: None) -> None:
    asked = asyncio.Event()

    async def hang() -> None:
        asked.set()
        await asyncio.Event().wait()

    run = ToyRun()
    run.client.before = hang
    fitting = asyncio.create_task(run.fit())
    await asyncio.wait_for(asked.wait(), timeout=20)
    assert any(thread.name == "gepa" for thread in threading.enumerate())
    fitting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fitting
    assert not any(thread.name == "gepa" and thread.is_alive() for thread in threading.enumerate())


async def test_the_best_of_many_has_no_interval_on_the_samples_that_it_was_chosen_on() -> None:
    run = ToyRun()
    result = await run.fit(max_metric_calls=200)
    found = result.comparison
    assert found is not None
    assert found.difference is not None
    assert found.difference.difference > 0
    assert (found.mode, found.kept_back, found.difference.low) == ("val", False, None)
    assert not {"val_gain_low", "val_gain_high", "val_reward_low", "val_reward_high"} & result.metrics.keys()
    assert str(found.difference) == f"0.20 → 0.80 (+0.60, n={len(VAL)})"
