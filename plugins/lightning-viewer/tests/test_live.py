"""A live reading of a store or a run's folder: what changes shows, and nothing is lost."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from lightning_http import LightningStoreClient
from lightning_http.server import LightningStoreServer
from lightning_viewer.live import Live
from lightning_viewer.reading import Follower
from live_stores import SECONDS, agent, prompt, reward_span, trained, work

from lightning_core import PromptTemplate, Trainer, rollout
from lightning_core.algorithm import algo, run_batch
from lightning_core.algorithm.base import Reporter
from lightning_core.errors import RunFolderError, StoreUnavailable
from lightning_core.runs.folder import runs_in
from lightning_core.store import InMemoryLightningStore, LightningStore


def hold_up(store: LightningStore, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Let each look at a store wait: return what says that one has begun, and what lets them go on."""
    begun, may_go_on = asyncio.Event(), asyncio.Event()
    read = store.query_resources

    async def waits(*args: Any, **options: Any) -> Any:
        begun.set()
        await may_go_on.wait()
        return await read(*args, **options)

    monkeypatch.setattr(store, "query_resources", waits)
    return begun, may_go_on


async def test_a_client_that_leaves_during_a_look_loses_nothing(
    store: LightningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(store)
    assert len(await live.known()) == 7
    first = await work(store, 0.25)
    await store.enqueue_rollout({"question": "new"})
    begun, may_go_on = hold_up(store, monkeypatch)

    async def follow() -> None:
        async for _ in live.changes(0):
            pass

    client = asyncio.create_task(follow())
    async with asyncio.timeout(SECONDS):
        await begun.wait()
        client.cancel()
        await asyncio.gather(client, return_exceptions=True)
        may_go_on.set()
        await live.look()
        known = await live.known()
    row = known.row(first)
    assert row is not None
    assert (len(known), row["status"], row["reward"]) == (8, "succeeded", 0.25)
    await live.aclose()


async def test_while_a_look_lasts_pages_show_what_is_known_and_how_old_it_is(
    store: LightningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(store)
    assert len(await live.known()) == 7
    _, may_go_on = hold_up(store, monkeypatch)
    await store.enqueue_rollout({"question": "new"})
    changes = live.changes(live.revision)
    async with asyncio.timeout(SECONDS):
        assert len(await live.known()) == 7
        first = await anext(changes)
        assert (first["revision"] == live.revision, first["age"] > 0) == (True, True)
        may_go_on.set()
        async for told in changes:
            if told["revision"] > first["revision"]:
                break
        assert len(await live.known()) == 8
    await changes.aclose()
    await live.aclose()


async def test_a_store_that_cannot_be_read_is_logged_once_and_told_to_every_page(
    store: LightningStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    live = Live(store)
    assert len(await live.known()) == 7
    streams = [live.changes(live.revision) for _ in range(3)]

    async def fails(*args: Any, **options: Any) -> Any:
        raise StoreUnavailable("gone for a moment")

    async def until(failure: str | None) -> None:
        for each in streams:
            async for told in each:
                if told["failure"] == failure:
                    break

    async with asyncio.timeout(SECONDS):
        with monkeypatch.context() as broken:
            broken.setattr(store, "query_resources", fails)
            await store.enqueue_rollout({"question": "new"})
            first = await work(store, 0.25)
            await until("gone for a moment")
            assert len(await live.known()) == 7
        await until(None)
    known = await live.known()
    row = known.row(first)
    assert row is not None
    assert (len(known), row["status"], row["reward"]) == (8, "succeeded", 0.25)  # what the failed look did not read
    lines = [each.getMessage() for each in caplog.records if each.name == "lightning_viewer.live"]
    assert lines == [f"lightning.live_page_not_updated run_id={store.run_id}: gone for a moment"]
    assert all(each.exc_info is None for each in caplog.records)
    for each in streams:
        await each.aclose()
    await live.aclose()


async def test_a_run_that_goes_on_is_shown_from_copies(tmp_path: Path) -> None:
    seen = asyncio.Event()

    @rollout
    async def waits(task: int) -> float:
        if task == 1:
            async with asyncio.timeout(3 * SECONDS):
                await seen.wait()
        return float(task)

    trainer = Trainer(algorithm="baseline", n_runners=1, run_dir=tmp_path)
    run = asyncio.create_task(trainer.fit_async(waits, [0, 1]))
    live: Live | None = None
    try:
        async with asyncio.timeout(3 * SECONDS):
            while live is None:
                await asyncio.sleep(0.05)
                folders = [folder for folder in runs_in(tmp_path) if "store.db" in os.listdir(folder.path)]
                live = Live(folder=folders[0]) if folders else None
            changes = live.changes(0)
            async for _ in changes:
                counts = (await live.summary())["counts"]
                if counts["succeeded"] == 1:
                    break
            assert counts["unfinished"] == 1
            assert (await live.summary())["run"]["outcome"] == "running"
            seen.set()
            await run
            async for _ in changes:
                told = await live.summary()
                if told["run"]["outcome"] == "succeeded" and told["counts"]["succeeded"] == 2:
                    break
            await changes.aclose()
        assert told["can_act"] is False
    finally:
        seen.set()
        if live is not None:
            await live.aclose()
        await run
        await trainer.store.aclose()


async def test_while_a_run_goes_on_its_best_has_no_interval_on_the_samples_that_it_was_chosen_on(
    tmp_path: Path,
) -> None:
    @rollout
    async def right_at_times(task: int, prompt_template: PromptTemplate) -> float:
        return float(task % 2 == 0 or prompt_template.template == "second")

    @algo
    async def choose(store: LightningStore, val_dataset: list[int], report: Reporter) -> None:
        for text in ("first", "second"):
            version = (await store.add_resources(prompt(text))).resources_id
            await run_batch(store, val_dataset, mode="val", resources_id=version)
        report({}, best_resources=prompt("second"))
        [folder] = runs_in(tmp_path)
        live = Live(folder=folder)
        seen.append((await live.summary())["comparison"])
        await live.aclose()

    seen: list[dict[str, Any]] = []
    options = {"algorithm": choose, "initial_resources": prompt("first")}
    await trained(right_at_times, tmp_path, val=[0, 1, 2, 3], **options)
    [found] = seen
    assert (found["difference"]["difference"], found["before"]["mean"], found["after"]["mean"]) == (0.5, 0.5, 1.0)
    assert [found[name]["low"] for name in ("difference", "before", "after")] == [None, None, None]


async def test_a_copy_stays_open_while_it_is_read(tmp_path: Path) -> None:
    folder = await trained(agent, tmp_path, [1, 0])
    live = Live(folder=folder)
    async with live.reading() as store:
        os.utime(folder.store_file)
        renewed = asyncio.create_task(live.look())
        await asyncio.sleep(0.5)
        assert len(await store.query_rollouts()) == 2
    await renewed
    async with live.reading() as newer:
        assert len(await newer.query_rollouts()) == 2
    await live.aclose()


async def test_a_late_reward_shows_in_copies(tmp_path: Path) -> None:
    trainer = Trainer(algorithm="baseline", run_dir=tmp_path)
    await trainer.fit_async(agent, [1, 0])
    [folder] = runs_in(tmp_path)
    live = Live(folder=folder)
    assert len(await live.known()) == 2
    await judge_late(trainer.store, live)
    await live.aclose()
    await trainer.store.aclose()


async def test_a_late_reward_shows_where_the_store_is_asked_over_http(
    server: LightningStoreServer, store: LightningStore
) -> None:
    for number in range(300):
        await store.enqueue_rollout(number)
    await work(store, 0.5)
    for _ in range(300):
        await work(store, 0.5)
    client = LightningStoreClient(server.url, key="")
    live = Live(client)
    assert len(await live.known()) == 307
    await judge_late(store, live)
    await live.aclose()
    await client.aclose()


async def test_a_rollout_that_ended_without_a_reward_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store, follower = InMemoryLightningStore(), Follower()
    begun = await store.start_rollout(1)
    await store.update_attempt(begun.rollout_id, begun.attempt.attempt_id, status="succeeded")
    await follower.update(store)
    monkeypatch.setattr(store, "query_spans", None)
    assert await follower.update(store) == set()


async def judge_late(store: LightningStore, live: Live) -> None:
    """Give the last rollout another reward after its end, and wait until it shows."""
    *_, judged = await store.query_rollouts(status_in=["succeeded"])
    attempt = await store.get_latest_attempt(judged.rollout_id)
    assert attempt is not None
    await store.add_span(reward_span(judged.rollout_id, attempt.attempt_id, 0.125))
    changes = live.changes(live.revision)
    async with asyncio.timeout(SECONDS):
        async for _ in changes:
            if (await live.rollout(judged.rollout_id))["reward"] == 0.125:
                break
    await changes.aclose()


async def test_a_run_without_a_store_in_its_folder_says_so(tmp_path: Path) -> None:
    trainer = Trainer(algorithm="baseline", store=InMemoryLightningStore(), run_dir=tmp_path)
    await trainer.fit_async(agent, [1])
    [folder] = runs_in(tmp_path)
    with pytest.raises(RunFolderError, match="has no store in its folder"):
        await Live(folder=folder).look()
