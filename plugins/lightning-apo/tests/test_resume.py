"""A search that was killed goes on, and ends as if it had not been."""

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web
from lightning_apo import APO
from lightning_apo.saved import ANSWERS, STATE
from toy_models import ToyModels
from toy_run import FIRST, OPTIONS, ToyRun, quality, succeed_where_easy

from lightning_core import InMemoryLightningStore, PromptTemplate
from lightning_core.errors import NoRewards


async def search(models: ToyModels, run: ToyRun, **options: Any) -> dict[str, Any]:
    """Run a search to its end; return the state that it ended with, without what is different by nature."""
    async with models.client() as client:
        await run.fit(APO(client, **{**OPTIONS, **options}))
    return await history(run)


async def history(run: ToyRun) -> dict[str, Any]:
    """Return the state, with the number of the parent in the store in place of resources."""
    saved = await run.store.load_state(STATE)  # type: ignore[attr-defined]
    candidates = saved["state"]["candidates"]
    numbers = {candidate["resources_id"]: number for number, candidate in enumerate(candidates)}
    for candidate in candidates:
        entered = await run.store.get_resources_by_id(candidate.pop("resources_id"))  # type: ignore[attr-defined]
        candidate["parent in the store"] = numbers.get(entered.parent_id)
    state: dict[str, Any] = saved["state"]
    return state


def a_run(**fields: Any) -> ToyRun:
    return ToyRun(store=InMemoryLightningStore(), **fields)


async def killed(models: ToyModels, run: ToyRun, *, after: int, **options: Any) -> None:
    """Start a search, and cancel it when a model is asked for the n-th time."""
    asked = asyncio.Event()
    models.on_request = lambda: asked.set() if len(models.requests) >= after else None
    async with models.client() as client:
        fitting = asyncio.create_task(run.fit(APO(client, **{**OPTIONS, **options})))
        await asyncio.wait_for(asked.wait(), timeout=20)
        fitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fitting
    models.on_request = lambda: None


async def test_the_whole_history_is_the_same_whatever_is_slow(models: ToyModels) -> None:
    histories = []
    for latency in (None, random.Random(1)):
        models.latency = latency
        histories.append(await search(models, a_run(latency=latency), seed=3))
    assert histories[0] == histories[1]
    assert len(histories[0]["candidates"]) > 5
    assert all(each["parent in the store"] == each["parent"] for each in histories[0]["candidates"])
    models.latency = None
    assert await search(models, a_run(), seed=4) != histories[0]


@pytest.mark.parametrize("after", [1, 6, 14, 22])
async def test_a_search_killed_at_any_moment_ends_as_if_it_had_not_been(models: ToyModels, after: int) -> None:
    whole = a_run()
    expected = await search(models, whole)
    run = a_run()
    models.requests.clear()
    await killed(models, run, after=after)
    asked_before = len(models.requests)
    assert await search(models, run) == expected
    assert len(models.requests) <= 24 + 6, f"answers were asked for again; {asked_before} before the kill"
    # What had ended was not run again: each prompt once on each sample of a step, but for what was running.
    ended = await run.store.query_rollouts(status_in=["succeeded"])  # type: ignore[attr-defined]
    assert len(ended) == len(whole.rollouts)


@pytest.mark.parametrize("seed", [0, 1])
async def test_what_failed_before_the_kill_and_succeeds_after_it_leaves_the_parents_true(
    models: ToyModels, seed: int
) -> None:
    def fail_at_first(request_seed: int) -> web.Response | None:
        asked = len(models.texts("editor"))
        return web.json_response({}, status=503) if models.requests[-1]["model"] == "editor" and asked <= 2 else None

    models.reply = fail_at_first
    run = a_run()
    await killed(models, run, after=14, seed=seed, branch_factor=8)
    candidates = (await search(models, run, seed=seed, branch_factor=8))["candidates"]

    assert len(candidates) > 10
    for candidate in candidates[1:]:
        head, _, *rest = candidate["texts"]["main"].split("\n")  # an edit adds the second line
        assert [head, *rest] == candidates[candidate["parent"]]["texts"]["main"].split("\n")


async def test_answers_that_were_given_are_not_asked_for_again(models: ToyModels) -> None:
    run = a_run()
    models.latency = random.Random(0)
    await killed(models, run, after=8)
    answers = await run.store.load_state(ANSWERS)  # type: ignore[attr-defined]
    kept = len(answers["answers"])
    models.requests.clear()
    await search(models, run)
    assert kept > 0
    assert len(models.requests) == 24 - kept


async def test_a_search_that_ended_is_not_continued(models: ToyModels) -> None:
    run = a_run()
    first = await search(models, run)
    rollouts = len(run.rollouts)
    assert await search(models, run) == first
    assert len(run.rollouts) == 2 * rollouts


async def test_a_search_about_something_else_begins_anew_and_says_why(
    models: ToyModels, caplog: pytest.LogCaptureFixture
) -> None:
    run = a_run()
    await killed(models, run, after=4)
    changed = await search(models, run, seed=5)
    assert "lightning.apo_begun_anew changed=['seed']" in caplog.text
    assert changed == await search(models, a_run(), seed=5)


async def test_a_search_in_which_nothing_gave_a_reward_is_begun_again_by_the_next_run(models: ToyModels) -> None:
    is_down = True

    def sometimes_down(template: str, task: Mapping[str, Any]) -> float:
        if is_down:
            raise RuntimeError("no such host")
        return succeed_where_easy(template, task)

    run = a_run(reward=sometimes_down)
    with pytest.raises(NoRewards, match="round 1"):
        await search(models, run)
    is_down = False
    assert await search(models, run) == await search(models, a_run())


async def test_no_key_is_saved(models: ToyModels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", models.url)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-key")
    run = a_run()
    run.resources = {"main": PromptTemplate(template=FIRST)}
    algorithm = APO(**OPTIONS)
    await run.fit(algorithm)
    assert "secret" not in str(await run.store.load_state(STATE))  # type: ignore[attr-defined]
    assert quality(algorithm.get_best_prompt().template) > 0.2
