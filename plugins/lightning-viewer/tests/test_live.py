"""The live page: what it asks for, and how it shows that in a browser."""

import asyncio
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from chromium import browser, needs_chromium
from lightning_http import LightningStoreClient
from lightning_http.auth import Keys
from lightning_http.listener import Listener, bind
from lightning_http.server import LightningStoreServer
from lightning_viewer.door import Door
from lightning_viewer.live import Live

from lightning_core import PromptTemplate, Trainer, rollout
from lightning_core.errors import RunFolderError, StoreUnavailable
from lightning_core.runs.folder import RunFolder, runs_in
from lightning_core.store import InMemoryLightningStore, LightningStore
from lightning_core.types import Span

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">&amp;"
KEY, RUNNER_KEY = "the-key-of-the-algorithm", "the-key-of-runners"
SECONDS = 20.0


def prompt(text: str) -> dict[str, Any]:
    return {"main_prompt": PromptTemplate(template=text)}


async def work(store: LightningStore, reward: float | None = None, *, worker_id: str = "worker-1") -> str:
    """Carry out the oldest queued rollout."""
    claimed = await store.dequeue_rollout(worker_id)
    assert claimed is not None
    rollout_id, attempt_id = claimed.rollout_id, claimed.attempt.attempt_id
    if reward is not None:
        await store.add_span(reward_span(rollout_id, attempt_id, reward))
    await store.update_attempt(rollout_id, attempt_id, "failed" if reward is None else "succeeded")
    return rollout_id


def reward_span(rollout_id: str, attempt_id: str, reward: float) -> Span:
    return Span.from_attributes(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=0,
        name="agentlightning.annotation",
        attributes={"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": reward},
    )


@pytest.fixture
async def store() -> AsyncIterator[LightningStore]:
    """Three samples, each with two prompts: better, worse and the same; one more is queued."""
    store = InMemoryLightningStore()
    for text, rewards in (("first {task}", (0.0, 1.0, 0.5)), ("second {task}", (1.0, 0.0, 0.5))):
        version = await store.add_resources(prompt(text))
        for question, reward in zip(("easy", "hard", HOSTILE), rewards, strict=True):
            await store.enqueue_rollout({"question": question}, mode="val", resources_id=version.resources_id)
            await work(store, reward)
    await store.enqueue_rollout({"question": "waits"}, mode="train")
    yield store
    await store.aclose()


@pytest.fixture
async def server(store: LightningStore) -> AsyncIterator[LightningStoreServer]:
    async with LightningStoreServer(store, key="") as server:
        yield server


async def ask(server: LightningStoreServer, path: str, *, key: str | None = None, **options: Any) -> tuple[int, Any]:
    headers = {**options.pop("headers", {}), **({} if key is None else {"authorization": f"Bearer {key}"})}
    async with (
        aiohttp.ClientSession() as session,
        session.request(options.pop("method", "GET"), server.url + path, headers=headers, **options) as answer,
    ):
        text = await answer.text()
        return answer.status, json.loads(text) if answer.content_type == "application/json" else text


# What is asked


async def test_the_page_needs_no_key_and_the_data_do(store: LightningStore) -> None:
    async with LightningStoreServer(store, key=KEY, runner_key=RUNNER_KEY) as server:
        status, page = await ask(server, "/")
        assert status == 200
        assert HOSTILE not in page
        assert "waits" not in page
        for path in ("run", "rollouts", "workers", "events", "samples?before=0&after=1"):
            status, told = await ask(server, f"/ui/{path}")
            assert (status, told["error"]) == (401, "AccessDenied"), path
        status, _ = await ask(server, "/ui/rollouts", key=RUNNER_KEY)
        assert status == 200


async def test_only_the_algorithms_key_acts(store: LightningStore) -> None:
    [waiting] = await store.query_rollouts(status_in=["queuing"])
    async with LightningStoreServer(store, key=KEY, runner_key=RUNNER_KEY) as server:
        path = f"/ui/rollouts/{waiting.rollout_id}/cancel"
        status, told = await ask(server, path, key=RUNNER_KEY, method="POST")
        assert (status, told["message"]) == (403, "this key cannot do that; it takes the key of algorithms")
        status, told = await ask(server, path, key=KEY, method="POST")
        assert (status, told["status"]) == (200, "cancelled")
        status, told = await ask(server, path.replace("cancel", "requeue"), key=KEY, method="POST")
        assert status == 409


async def test_a_page_of_another_site_cannot_act(server: LightningStoreServer, store: LightningStore) -> None:
    [waiting] = await store.query_rollouts(status_in=["queuing"])
    headers = {"origin": "http://evil.example", "sec-fetch-site": "cross-site"}
    path = f"/ui/rollouts/{waiting.rollout_id}/cancel"
    status, told = await ask(server, path, method="POST", headers=headers)
    assert (status, told["error"]) == (403, "AccessDenied")
    [waiting] = await store.query_rollouts(status_in=["queuing"])


async def test_the_page_may_ask_its_own_server_and_nothing_else(server: LightningStoreServer) -> None:
    async with aiohttp.ClientSession() as session, session.get(server.url) as answer:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "connect-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert (await answer.text()).count(policy.removesuffix("; frame-ancestors 'none'")) == 1


async def test_the_run_is_told_without_its_rollouts(server: LightningStoreServer) -> None:
    status, told = await ask(server, "/ui/run")
    assert status == 200
    assert told["counts"] == {"succeeded": 6, "failed": 0, "cancelled": 0, "unfinished": 1, "retried": 0}
    assert [each["texts"]["main_prompt"] for each in told["resources"]] == ["first {task}", "second {task}"]
    assert "rollouts" not in told


@pytest.mark.parametrize(
    ("query", "rewards"),
    [
        ("order=worst&status=succeeded&limit=2", [0.0, 0.0]),
        ("order=best&limit=2", [1.0, 1.0]),
        ("version=1&order=oldest", [1.0, 0.0, 0.5]),
        ("from=0.4&to=0.6", [0.5, 0.5]),
        ("text=HARD&order=oldest", [1.0, 0.0]),
        ("mode=train", [None]),
        ("order=oldest&limit=2&offset=5", [0.5, None]),
        ("text=nothing", []),
    ],
)
async def test_rollouts_are_filtered_sorted_and_paged(
    server: LightningStoreServer, query: str, rewards: list[float | None]
) -> None:
    status, told = await ask(server, f"/ui/rollouts?{query}")
    assert status == 200
    assert [each["reward"] for each in told["rollouts"]] == rewards
    assert told["all"] == 7


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("rollouts?limit=-1", 422, "limit is '-1'; it is a whole number from 0 on"),
        ("rollouts?order=odd", 422, "order is 'odd'; there are: worst, best, newest, oldest, slowest"),
        ("rollouts?from=low", 422, "from is 'low'; it is a number"),
        ("rollouts/ro-none", 404, "has no rollout 'ro-none'"),
        ("rollouts/ro-none/trace", 404, "has no rollout 'ro-none'"),
        ("samples?before=0", 422, "give the numbers of two versions, counted from 0: before and after"),
    ],
)
async def test_what_cannot_be_answered_says_why(
    server: LightningStoreServer, path: str, status: int, message: str
) -> None:
    found, told = await ask(server, f"/ui/{path}")
    assert found == status
    assert message in told["message"]


async def test_two_versions_are_compared_sample_by_sample(server: LightningStoreServer) -> None:
    _, told = await ask(server, "/ui/samples?before=0&after=1")
    assert (told["better"], told["worse"], told["same"]) == (1, 1, 1)
    assert told["difference"]["difference"] == 0.0
    assert [told["inputs"][str(each["sample"])]["question"] for each in told["rows"]] == ["hard", "easy"]


async def next_event(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    async with asyncio.timeout(SECONDS):
        while True:
            line = (await answer.content.readline()).decode()
            assert line, "the stream has ended"
            if line.startswith("data: ") and (told := json.loads(line[6:])):
                return dict(told)


async def test_changes_are_told_as_they_come_and_once(server: LightningStoreServer, store: LightningStore) -> None:
    _, run = await ask(server, "/ui/run")
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{server.url}/ui/events?after={run['revision']}") as answer,
    ):
        added = await store.enqueue_rollout({"question": "new"})
        assert (await next_event(answer))["rollouts"] == [added.rollout_id]
        first = await work(store, 1.0)
        seen: set[str] = set()
        while first not in seen:
            told = await next_event(answer)
            seen |= set(told["rollouts"])
        assert added.rollout_id not in seen
        _, page = await ask(server, "/ui/rollouts?order=oldest&offset=6")
        assert [each["status"] for each in page["rollouts"]] == ["succeeded", "queuing"]


async def test_a_server_that_stops_ends_the_streams(store: LightningStore) -> None:
    server = LightningStoreServer(store, key="")
    await server.start()
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}/ui/events") as answer:
        await next_event(answer)
        async with asyncio.timeout(SECONDS):
            await server.stop()
            while await answer.content.readline():
                pass


async def test_a_server_that_stopped_listens_to_its_store_no_more() -> None:
    class Watched(InMemoryLightningStore):
        listeners = 0

        def watch(self, listener: Callable[[str], None]) -> Callable[[], None]:
            self.listeners += 1
            return functools.cache(self.leave)

        def leave(self) -> None:
            self.listeners -= 1

    store = Watched()
    async with LightningStoreServer(store, key="") as server:
        await ask(server, "/ui/run")
        await ask(server, "/ui/rollouts")
        assert store.listeners == 1
    assert store.listeners == 0
    await store.aclose()


async def test_deleted_rollouts_are_gone_from_the_page(server: LightningStoreServer, store: LightningStore) -> None:
    _, told = await ask(server, "/ui/rollouts?order=oldest&limit=1")
    gone = told["rollouts"][0]["id"]
    await store.delete_rollouts([gone])
    await store.enqueue_rollout({"question": "new"})
    async with asyncio.timeout(SECONDS):
        while True:  # looks that took long are not repeated at once
            _, told = await ask(server, "/ui/rollouts?order=oldest")
            if told["all"] == 7 and told["rollouts"][0]["id"] != gone:
                break
            await asyncio.sleep(0.05)
    assert [each["reward"] for each in told["rollouts"]] == [1.0, 0.5, 1.0, 0.0, 0.5, None, None]


async def test_a_client_that_leaves_during_a_look_loses_nothing(
    store: LightningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, begun, may_go_on = Live(store), asyncio.Event(), asyncio.Event()
    assert len(await live.known()) == 7
    first = await work(store, 0.25)
    await store.enqueue_rollout({"question": "new"})
    read = store.query_resources

    async def waits(*args: Any, **options: Any) -> Any:
        begun.set()
        await may_go_on.wait()
        return await read(*args, **options)

    monkeypatch.setattr(store, "query_resources", waits)

    async def follow() -> None:
        async for _ in live.changes(0):
            pass

    client = asyncio.create_task(follow())
    async with asyncio.timeout(SECONDS):
        await begun.wait()
        client.cancel()
        await asyncio.gather(client, return_exceptions=True)
        may_go_on.set()
        known = await live.known()
    row = known.row(first)
    assert row is not None
    assert (len(known), row["status"], row["reward"]) == (8, "succeeded", 0.25)
    await live.aclose()


async def test_what_a_failed_look_did_not_read_is_read_by_the_next(
    store: LightningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(store)
    assert len(await live.known()) == 7
    first = await work(store, 0.25)
    await store.enqueue_rollout({"question": "new"})

    async def fails(*args: Any, **options: Any) -> Any:
        raise StoreUnavailable("gone for a moment")

    with monkeypatch.context() as broken:
        broken.setattr(store, "query_resources", fails)
        with pytest.raises(StoreUnavailable):
            await live.look()
    known = await live.known()
    row = known.row(first)
    assert row is not None
    assert (len(known), row["status"], row["reward"]) == (8, "succeeded", 0.25)
    await live.aclose()


async def test_a_call_has_the_engines_tokens(server: LightningStoreServer, store: LightningStore) -> None:
    rollout_id, _ = await talk(store)
    _, trace = await ask(server, f"/ui/rollouts/{rollout_id}/trace")
    assert trace["calls"][0]["tokens"] == {"prompt": 3, "response": 2, "ids": [4, 5], "logprobs": [-0.1, -2.303]}


async def talk(store: LightningStore) -> tuple[str, str]:
    """Carry out the queued rollout with a model call below a span of the agent's own; return both ids."""
    claimed = await store.dequeue_rollout("worker-1")
    assert claimed is not None
    ids: dict[str, Any] = {"rollout_id": claimed.rollout_id, "attempt_id": claimed.attempt.attempt_id}
    plan = Span.from_attributes(**ids, sequence_id=0, name="plan the answer", attributes={"depth": 3})
    call = Span.from_attributes(
        **ids,
        sequence_id=0,
        name="chat tiny",
        parent_id=plan.span_id,
        attributes={
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "tiny",
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": "what is asked",
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.content": HOSTILE,
            "prompt_token_ids": [1, 2, 3],
            "response_token_ids": [4, 5],
            "response_logprobs": [-0.1, -2.3026],
        },
    )
    await store.add_many_spans([plan, call])
    await store.add_span(reward_span(**ids, reward=0.25))
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, "succeeded")
    return claimed.rollout_id, plan.span_id


# A run in its folder


@rollout
async def agent(task: Any) -> float:
    return float(task)


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


async def test_a_copy_stays_open_while_it_is_read(tmp_path: Path) -> None:
    trainer = Trainer(algorithm="baseline", run_dir=tmp_path)
    await trainer.fit_async(agent, [1, 0])
    await trainer.store.aclose()
    [folder] = runs_in(tmp_path)
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


async def two_runs(root: Path) -> list[RunFolder]:
    for number in (0, 1):

        @rollout
        async def answers(task: int, better: int = number) -> float:
            return 1.0 if better or task == 0 else 0.0

        trainer = Trainer(algorithm="baseline", run_dir=root)
        await trainer.fit_async(answers, [0, 1, 2])
        await trainer.store.aclose()
    return sorted(runs_in(root), key=lambda each: each.manifest().start)


@asynccontextmanager
async def served(live: Live) -> AsyncIterator[str]:
    bound = bind("127.0.0.1", 0)
    listener = Listener(Door(live, Keys(None)), bound)
    port = bound.getsockname()[1]
    await listener.open()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await listener.close(seconds=0.5)
        await live.aclose()


async def test_two_runs_are_compared(tmp_path: Path) -> None:
    before, after = await two_runs(tmp_path)
    async with served(Live(folder=after, root=tmp_path)) as url, aiohttp.ClientSession() as session:
        async with session.get(f"{url}/ui/runs") as answer:
            assert [each["id"] for each in await answer.json()] == [before.run_id]
        async with session.get(f"{url}/ui/compare?run={before.run_id}") as answer:
            found = await answer.json()
        assert (found["better"], found["worse"], found["same"], found["changed"]) == (2, 0, 1, 2)
        assert [each["input"] for each in found["samples"]] == [1, 2]
        async with session.get(f"{url}/ui/compare?run=run-none") as answer:
            assert answer.status == 404
        [listed] = (await (await session.get(f"{url}/ui/rollouts?limit=1")).json())["rollouts"]
        async with session.post(f"{url}/ui/rollouts/{listed['id']}/cancel") as answer:
            assert answer.status == 403


async def test_only_runs_of_the_same_folder_are_compared(tmp_path: Path) -> None:
    _, shown = await two_runs(tmp_path / "runs")
    other, _ = await two_runs(tmp_path / "others")
    async with served(Live(folder=shown, root=tmp_path / "runs")) as url, aiohttp.ClientSession() as session:
        for given in (str(other.path), f"../others/{other.run_id}", "/etc", ""):
            async with session.get(f"{url}/ui/compare", params={"run": given}) as answer:
                assert (answer.status, (await answer.json())["error"]) == (404, "NotFound"), given


async def test_a_report_of_two_runs_compares_them(tmp_path: Path) -> None:
    before, after = await two_runs(tmp_path)
    target = tmp_path / "both.html"
    command = [sys.executable, "-m", "lightning_core", "report", after.run_id, before.run_id]
    command += ["--runs-dir", str(tmp_path), "-o", str(target)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    page = await asyncio.to_thread(target.read_text)
    told = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert (told["compared"]["better"], told["compared"]["same"]) == (2, 1)


async def test_a_run_without_a_store_in_its_folder_says_so(tmp_path: Path) -> None:
    trainer = Trainer(algorithm="baseline", store=InMemoryLightningStore(), run_dir=tmp_path)
    await trainer.fit_async(agent, [1])
    [folder] = runs_in(tmp_path)
    with pytest.raises(RunFolderError, match="has no store in its folder"):
        await Live(folder=folder).look()


@asynccontextmanager
async def agl_ui(*arguments: str) -> AsyncIterator[str]:
    """Run `agl ui` during the block, and end it as Ctrl-C does."""
    command = [sys.executable, "-m", "lightning_core", "ui", *arguments]
    environment = {name: each for name, each in os.environ.items() if name != "AGL_KEY"}
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60.0):
            line = (await process.stdout.readline()).decode()
        yield line.partition(" at ")[2].partition("/ (")[0]
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(SECONDS):
            _, errors = await process.communicate()
        assert (process.returncode, errors) == (0, b"")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_agl_ui_serves_a_run_until_ctrl_c(tmp_path: Path) -> None:
    trainer = Trainer(algorithm="baseline", run_dir=tmp_path)
    await trainer.fit_async(agent, [1, 0])
    await trainer.store.aclose()
    async with (
        agl_ui("--runs-dir", str(tmp_path)) as url,
        aiohttp.ClientSession() as session,
        session.get(f"{url}/ui/run") as answer,
    ):
        assert (await answer.json())["counts"]["succeeded"] == 2


async def test_agl_ui_shows_a_served_store_and_acts_on_it(store: LightningStore) -> None:
    [waiting] = await store.query_rollouts(status_in=["queuing"])
    async with (
        LightningStoreServer(store, key=KEY) as server,
        agl_ui("--store", server.url, "--key", KEY) as url,
        aiohttp.ClientSession(headers={"authorization": f"Bearer {KEY}"}) as session,
        session.get(f"{url}/ui/events?after=1") as events,
    ):
        added = await store.enqueue_rollout({"question": "new"})
        assert (await next_event(events))["rollouts"] == [added.rollout_id]
        async with session.post(f"{url}/ui/rollouts/{waiting.rollout_id}/cancel") as answer:
            assert (await answer.json())["status"] == "cancelled"
    [cancelled] = await store.query_rollouts(status_in=["cancelled"])
    assert cancelled.rollout_id == waiting.rollout_id


async def test_agl_ui_with_a_key_asks_for_it_on_this_machine_too(store: LightningStore) -> None:
    [waiting] = await store.query_rollouts(status_in=["queuing"])
    async with (
        LightningStoreServer(store, key=KEY) as server,
        agl_ui("--store", server.url, "--key", KEY) as url,
        aiohttp.ClientSession() as session,
    ):
        async with session.get(url) as answer:
            assert answer.status == 200
        for path in ("run", "rollouts", "events"):
            async with session.get(f"{url}/ui/{path}") as answer:
                assert (answer.status, (await answer.json())["error"]) == (401, "AccessDenied"), path
        async with session.post(f"{url}/ui/rollouts/{waiting.rollout_id}/cancel") as answer:
            assert answer.status == 401
    assert list(await store.query_rollouts(status_in=["queuing"])) == [waiting]


def test_agl_ui_on_an_address_of_others_needs_a_key(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lightning_core", "ui", "--runs-dir", str(tmp_path), "--host", "0.0.0.0"]
    environment = {name: each for name, each in os.environ.items() if name != "AGL_KEY"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 2
    assert "so the page needs a key: give --key or AGL_KEY" in done.stderr


# In a browser


@needs_chromium
async def test_pages_show_a_store_and_follow_it(
    server: LightningStoreServer, store: LightningStore, tmp_path: Path
) -> None:
    async with browser(tmp_path / "profile") as page:
        await page.open(f"{server.url}/#/rollouts")
        await page.wait_for("7 of 7 rollouts")
        assert HOSTILE in await page.text()
        await store.enqueue_rollout({"question": "came while it was open"})
        await page.wait_for("8 of 8 rollouts")
        await page.wait_for("came while it was open")
        await page.open(f"{server.url}/#/rollouts?status=queuing")
        await page.wait_for("2 of 8 rollouts")
        await page.open(f"{server.url}/#/run")
        await page.wait_for("6 succeeded")
        await page.open(f"{server.url}/#/prompts?version=v2")
        await page.wait_for("1 better, 1 worse, 1 the same, of 3")
        await page.open(f"{server.url}/#/workers")
        await page.wait_for("0 of 1 busy")
        await store.dequeue_rollout("worker-2")
        await page.wait_for("1 of 2 busy")
        await page.open(f"{server.url}/#/settings")
        await page.wait_for("A store does not know the config of its run.")
        assert await page.evaluate("document.title") == store.run_id
        assert page.errors == []


@needs_chromium
async def test_a_trace_shows_tokens_and_leads_to_a_span(
    server: LightningStoreServer, store: LightningStore, tmp_path: Path
) -> None:
    rollout_id, span_id = await talk(store)
    async with browser(tmp_path / "profile") as page:
        await page.open(f"{server.url}/#/rollout?id={rollout_id}")
        await page.wait_for(HOSTILE)
        toggle = "[...document.querySelectorAll('.head label')].find((each) => each.innerText.trim() === '{}').click()"
        await page.evaluate(toggle.format("tokens"))
        await page.wait_for("3 prompt tokens, which the loss leaves out; 2 tokens of the answer, which it counts")
        await page.evaluate(toggle.format("messages"))
        await page.wait_for("what is asked", gone=True)
        await page.open(f"{server.url}/#/rollout?id={rollout_id}&span={span_id}")
        await page.wait_for("Copy it and what is below")
        assert "depth 3" in await page.text()
        assert page.errors == []


@needs_chromium
async def test_runs_are_compared_in_a_browser(tmp_path: Path) -> None:
    _, after = await two_runs(tmp_path)
    async with served(Live(folder=after, root=tmp_path)) as url, browser(tmp_path / "profile") as page:
        await page.open(f"{url}/#/compare")
        await page.wait_for("2 better, 0 worse, 1 the same, of 3")
        await page.open(f"{url}/#/settings")
        await page.wait_for("Kept in this browser.")
        await page.evaluate(
            "(() => { const theme = document.querySelector('select'); theme.value = 'dark';"
            " theme.dispatchEvent(new Event('change', { bubbles: true })); })()"
        )
        dark = "getComputedStyle(document.body).backgroundColor === 'rgb(18, 20, 26)'"
        await page.wait_until(dark)
        await page.open(f"{url}/#/run")
        await page.wait_until(dark)
        assert page.errors == []


@needs_chromium
async def test_a_rollout_is_cancelled_from_its_page(
    server: LightningStoreServer, store: LightningStore, tmp_path: Path
) -> None:
    [waiting] = await store.query_rollouts(status_in=["queuing"])
    async with browser(tmp_path / "profile") as page:
        await page.open(f"{server.url}/#/rollout?id={waiting.rollout_id}")
        await page.wait_for("Queue again")
        await page.evaluate("window.confirm = () => true, document.querySelector('button.danger').click()")
        await page.wait_for("cancelled")
        assert "Queue again" not in await page.text()
    [cancelled] = await store.query_rollouts(status_in=["cancelled"])
    assert cancelled.rollout_id == waiting.rollout_id


@needs_chromium
async def test_a_lost_connection_is_shown_and_comes_back(store: LightningStore, tmp_path: Path) -> None:
    first = LightningStoreServer(store, key="")
    await first.start()
    port = int(first.url.rpartition(":")[2])
    async with browser(tmp_path / "profile") as page:
        await page.open(f"{first.url}/#/rollouts")
        await page.wait_for("7 of 7 rollouts")
        await first.stop()
        await page.wait_for("The connection is lost.")
        await store.enqueue_rollout({"question": "came meanwhile"})
        async with LightningStoreServer(store, key="", port=port):
            await page.wait_for("8 of 8 rollouts")
            await page.wait_for("The connection is lost.", gone=True)


@needs_chromium
async def test_a_hidden_tab_holds_no_connection(
    store: LightningStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = asyncio.Event()
    changes = Live.changes

    async def watched(live: Live, after: int) -> AsyncGenerator[dict[str, Any]]:
        told = changes(live, after)
        try:
            async for each in told:
                yield each
        finally:
            await told.aclose()
            ended.set()

    monkeypatch.setattr(Live, "changes", watched)
    turn = (
        "Object.defineProperty(document, 'visibilityState', {{ value: '{}', configurable: true }}),"
        " document.dispatchEvent(new Event('visibilitychange'))"
    )
    async with LightningStoreServer(store, key="") as server, browser(tmp_path / "profile") as page:
        await page.open(f"{server.url}/#/rollouts")
        await store.enqueue_rollout({"question": "came while it was seen"})
        await page.wait_for("came while it was seen")
        await page.evaluate(turn.format("hidden"))
        async with asyncio.timeout(SECONDS):
            await ended.wait()
        await store.enqueue_rollout({"question": "came meanwhile"})
        assert "The connection is lost." not in await page.text()
        await page.evaluate(turn.format("visible"))
        await page.wait_for("came meanwhile")
        await store.enqueue_rollout({"question": "came later"})
        await page.wait_for("came later")
        assert page.errors == []


@needs_chromium
async def test_a_page_asks_for_the_key_of_its_store(store: LightningStore, tmp_path: Path) -> None:
    async with LightningStoreServer(store, key=KEY) as server, browser(tmp_path / "profile") as page:
        await page.open(f"{server.url}/#/rollouts")
        await page.wait_for("This store wants a key")
        type_key = """new Promise((resolve) => {{ const field = document.querySelector('input[type=password]');
            field.value = '{}'; field.dispatchEvent(new Event('input', {{ bubbles: true }}));
            setTimeout(() => resolve(field.form.requestSubmit()), 100); }})"""
        await page.evaluate(type_key.format("wrong"))
        await page.wait_for("this is not a key of this store")
        await page.evaluate(type_key.format(KEY))
        await page.wait_for("7 of 7 rollouts")


@needs_chromium
async def test_an_empty_store_says_that_nothing_is_there_yet(tmp_path: Path) -> None:
    store = InMemoryLightningStore()
    async with LightningStoreServer(store, key="") as server, browser(tmp_path / "profile", width=390) as page:
        await page.open(server.url)
        await page.wait_for("No rollout has given a reward yet.")
        for name, words in (
            ("rollouts", "There are no rollouts yet."),
            ("prompts", "There are no resources"),
            ("workers", "No worker has asked for work yet."),
        ):
            await page.open(f"{server.url}/#/{name}")
            await page.wait_for(words)
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        await store.enqueue_rollout("the first one")
        await page.open(f"{server.url}/#/rollouts")
        await page.wait_for("the first one")
        assert page.errors == []
    await store.aclose()
