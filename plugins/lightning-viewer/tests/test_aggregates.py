"""The numbers of a run: the same however its rollouts came in."""

import random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from lightning_viewer.aggregates import Aggregates, Question, short_json
from lightning_viewer.compare import compare_versions
from lightning_viewer.reading import Follower, read_aggregates

from lightning_core import PromptTemplate
from lightning_core.algorithm.estimates import estimate
from lightning_core.emitter import emit_reward
from lightning_core.runs.result import count_rollouts
from lightning_core.store import InMemoryLightningStore, LightningStore
from lightning_core.types import Attempt, AttemptedRollout, ResourcesUpdate, Rollout, Span

REWARDS = st.none() | st.sampled_from([0.0, 0.1, 0.2, 0.3, 1.0, 1e16, -1e16])


def prompt(resources_id: str, text: str, *, at: float) -> ResourcesUpdate:
    return ResourcesUpdate(
        resources_id=resources_id,
        create_time=at,
        update_time=at,
        version=1,
        resources={"main": PromptTemplate(template=text)},
    )


VERSIONS = [prompt("rs-1", "first", at=1), prompt("rs-2", "second", at=2), prompt("rs-3", "first", at=3)]


@st.composite
def rollouts(draw: st.DrawFn) -> tuple[Rollout, float | None]:
    status = draw(st.sampled_from(["queuing", "running", "succeeded", "failed", "cancelled"]))
    rollout_id = f"ro-{draw(st.integers(0, 7))}"
    fields: dict[str, Any] = {
        "rollout_id": rollout_id,
        "input": {"question": draw(st.integers(0, 3))},
        "mode": draw(st.sampled_from([None, "train", "val"])),
        "resources_id": draw(st.sampled_from([None, "rs-1", "rs-2", "rs-3"])),
        "status": status,
        "start_time": float(draw(st.integers(0, 3))),
        "end_time": None if status in ("queuing", "running") else 9.0,
        "metadata": draw(st.none() | st.just({"step": 1}) | st.just({"step": 2})),
    }
    if status == "queuing":
        return Rollout(**fields), None
    told: dict[str, Any] = {"usage": {"calls": 1, "input_tokens": 3, "cost": draw(st.sampled_from([0.1, 0.2, 0.7]))}}
    if status == "failed":
        told["failure"] = {"type": "ValueError", "message": f"no {draw(st.integers(1, 3))} apples"}
    attempt = Attempt(
        rollout_id=rollout_id,
        attempt_id=f"at-{rollout_id}",
        sequence_id=draw(st.integers(1, 2)),
        start_time=0.0,
        status="running" if status == "running" else "failed" if status == "failed" else "succeeded",
        metadata=told,
    )
    return AttemptedRollout(**fields, attempt=attempt), draw(REWARDS) if status == "succeeded" else None


def everything(aggregates: Aggregates) -> Any:
    """Return all that can be asked, with inputs in the place of their numbers."""

    def named(rows: list[dict[str, Any]], inputs: dict[int, Any]) -> list[dict[str, Any]]:
        return [{**row, "sample": inputs[row["sample"]]} for row in rows]

    page = aggregates.page(Question(order="oldest"))
    compared = compare_versions(aggregates, 0, 1)
    rows = sorted(compared.pop("samples"), key=str)
    versions = aggregates.versions(best={"main": PromptTemplate(template="second")})
    return aggregates.summary(), versions, named(page["rollouts"], page["inputs"]), page["total"], compared, rows


@given(st.lists(rollouts(), max_size=30), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_rollouts_put_in_again_and_in_any_order_are_as_if_put_in_once(
    changes: list[tuple[Rollout, float | None]], order: random.Random
) -> None:
    known = Aggregates()
    for number, (rollout, reward) in enumerate(changes):
        known.put(rollout, reward)
        if number % 3 == 0:
            everything(known)  # what was computed in between is not kept for longer than it is true
        if number == 10:
            known.put_resources(VERSIONS)
    known.put_resources(VERSIONS)
    last = {rollout.rollout_id: (rollout, reward) for rollout, reward in changes}
    if "ro-0" in last:
        known.discard("ro-0")
        del last["ro-0"]
    shuffled = list(last.values())
    order.shuffle(shuffled)
    at_once = Aggregates()
    at_once.put_resources(reversed(VERSIONS))
    for rollout, reward in shuffled:
        at_once.put(rollout, reward)
    assert everything(known) == everything(at_once)


def filled(rewards: list[float | None]) -> Aggregates:
    aggregates = Aggregates()
    aggregates.put_resources(VERSIONS)
    for number, reward in enumerate(rewards):
        rollout = Rollout(
            rollout_id=f"ro-{number}",
            input={"question": f"Question {number // 2}"},
            mode="val",
            resources_id=("rs-1", "rs-2")[number % 2],
            status="failed" if reward is None else "succeeded",
            start_time=float(number),
            end_time=float(number + 1),
        )
        aggregates.put(rollout, reward)
    return aggregates


def test_versions_have_the_rewards_of_equal_ones() -> None:
    aggregates = filled([0.0, 1.0, 1.0, 1.0, None, 0.5])
    first, second = aggregates.versions(best={"main": PromptTemplate(template="second")})
    assert (first["texts"], first["is_best"], second["is_best"]) == ({"main": "first"}, False, True)
    measured = estimate([0.0, 1.0, None])
    assert measured is not None
    assert first["rewards"] == [
        {
            "mode": "val",
            "mean": 0.5,
            "low": measured.low,
            "high": measured.high,
            "n": 2,
            "lost": 1,
            "confidence": 0.95,
        }
    ]


def test_a_version_has_the_number_of_the_one_that_it_was_made_from() -> None:
    made = [
        ("rs-1", "a", None),
        ("rs-2", "b", "rs-1"),
        ("rs-3", "c", "rs-2"),
        ("rs-4", "b", "rs-3"),
        ("rs-5", "a", "rs-4"),
    ]
    aggregates = Aggregates()
    aggregates.put_resources(
        ResourcesUpdate(
            resources_id=resources_id,
            create_time=float(number),
            update_time=float(number),
            version=1,
            resources={"main": PromptTemplate(template=text)},
            parent_id=parent_id,
        )
        for number, (resources_id, text, parent_id) in enumerate(made)
    )
    # What was made again, of one of its own descendants, keeps its place.
    assert [each["parent"] for each in aggregates.versions()] == [None, 0, 1]


def test_versions_are_compared_on_one_kind_of_samples_those_learned_from_least() -> None:
    aggregates = filled([1.0, 0.0, 1.0, 0.5, 0.5, 0.5])
    kept = Rollout(rollout_id="ro-1", input=0, mode="test", resources_id="rs-1", status="succeeded", start_time=9.0)
    aggregates.put(kept.model_copy(update={"rollout_id": "ro-10"}), 0.25)
    assert (compare_versions(aggregates, 0, 1)["mode"], compare_versions(aggregates, 0, 1)["worse"]) == ("val", 2)
    aggregates.put(kept.model_copy(update={"rollout_id": "ro-11", "resources_id": "rs-2"}), 0.75)
    compared = compare_versions(aggregates, 0, 1)
    assert (compared["mode"], compared["better"], compared["worse"], compared["same"]) == ("test", 1, 0, 0)
    assert compared["difference"]["n"] == 1


@pytest.mark.parametrize(
    ("limit", "changes"), [(0, []), (1, [-1.0]), (3, [-1.0, -0.5, 1.0]), (9, [-1.0, -0.5, 0.5, 1.0])]
)
def test_of_many_samples_that_changed_those_are_shown_that_lost_and_gained_most(
    limit: int, changes: list[float]
) -> None:
    aggregates = filled([0.0, 0.5, 1.0, 0.0, 1.0, 0.5, 0.0, 1.0])
    compared = compare_versions(aggregates, 0, 1, limit=limit)
    assert [each["after"] - each["before"] for each in compared["samples"]] == changes
    assert (compared["better"], compared["worse"]) == (2, 2)


@pytest.mark.parametrize(
    ("asked", "ids"),
    [
        ({}, ["ro-4", "ro-0", "ro-5", "ro-3"]),
        ({"order": "best"}, ["ro-1", "ro-2", "ro-3", "ro-5"]),
        ({"order": "newest"}, ["ro-5", "ro-4", "ro-3", "ro-2"]),
        ({"status": "failed"}, ["ro-4"]),
        ({"without_reward": True}, ["ro-4"]),
        ({"version": 0, "order": "oldest"}, ["ro-0", "ro-2", "ro-4"]),
        ({"version": 7, "order": "oldest"}, []),
        ({"mode": "other", "order": "oldest"}, []),
        ({"sample": 1, "order": "oldest"}, ["ro-2", "ro-3"]),
        ({"from": 0.5, "to": 0.7}, ["ro-5", "ro-3"]),
        ({"text": "QUESTION 2", "order": "oldest"}, ["ro-4", "ro-5"]),
        ({"text": "ro-3", "order": "oldest"}, ["ro-3"]),
    ],
)
def test_a_page_has_what_the_filter_lets_pass(asked: dict[str, Any], ids: list[str]) -> None:
    aggregates = filled([0.0, 1.0, 1.0, 0.7, None, 0.5])
    question = Question(limit=4, **asked)
    page = aggregates.page(question)
    assert [row["id"] for row in page["rollouts"]] == ids
    assert (page["all"], page["total"]) == (6, len(aggregates.find(question)))
    assert page["inputs"].keys() == {row["sample"] for row in page["rollouts"]}
    rest = aggregates.page(question.model_copy(update={"offset": 2}))
    assert [row["id"] for row in rest["rollouts"]][:2] == ids[2:4]


def test_a_long_input_is_cut_short_and_a_short_one_stays_as_it_is() -> None:
    for value in ("x" * 5_000, {"a": ["y" * 900] * 50, "b": 1}):
        assert len(short_json(value)) <= 1_000
    assert short_json({"question": "Ü", "n": 1}) == '{"question": "Ü", "n": 1}'


async def end(store: LightningStore, reward: float) -> str:
    claimed = await store.dequeue_rollout()
    assert claimed is not None
    said = emit_reward(reward, propagate=False)
    ids = claimed.rollout_id, claimed.attempt.attempt_id
    await store.add_span(Span.from_core_fields(said, rollout_id=ids[0], attempt_id=ids[1]))
    await store.update_attempt(*ids, status="succeeded")
    return claimed.rollout_id


async def test_changes_are_taken_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_viewer.reading.PAGE_SIZE", 2)
    store = InMemoryLightningStore()
    await store.add_resources({"main": PromptTemplate(template="first")})
    for number in range(5):
        await store.enqueue_rollout({"question": number})
    await end(store, 1.0)
    follower = Follower()
    await follower.update(store)
    assert len(follower.known) == 5
    second = await store.add_resources({"main": PromptTemplate(template="second")})
    for waiting in await store.query_rollouts(status_in=["queuing"]):
        await store.update_rollout(waiting.rollout_id, resources_id=second.resources_id)
    changed, gone = await end(store, 0.25), await end(store, 0.5)
    await store.delete_rollouts([gone])
    await follower.update(store, {changed, gone})
    aggregates = follower.known
    assert everything(aggregates)[:2] == everything(await read_aggregates(store))[:2]
    counts, _ = await count_rollouts(store)
    assert aggregates.counts() == counts
    assert [each["rewards"][0]["mean"] for each in aggregates.versions()] == [1.0, 0.25]
    await store.aclose()


def test_the_time_of_a_rollout_is_its_attempts_without_the_queue() -> None:
    known = Aggregates()
    for name, queued, began, ended in (("ro-slow", 50.0, 60.0, 69.0), ("ro-waited", 0.0, 60.0, 61.0)):
        attempt = Attempt(
            rollout_id=name, attempt_id="at-1", sequence_id=1, start_time=began, end_time=ended, status="succeeded"
        )
        known.put(
            AttemptedRollout(
                rollout_id=name, input=1, start_time=queued, end_time=ended, status="succeeded", attempt=attempt
            ),
            1.0,
        )
    page = known.page(Question(order="slowest"))
    assert [(each["id"], each["seconds"]) for each in page["rollouts"]] == [("ro-slow", 9.0), ("ro-waited", 1.0)]
