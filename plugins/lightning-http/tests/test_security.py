"""Keys: who needs one, and what it is good for."""

import base64

import pytest
from http_fixtures import KEY, RUNNER_KEY
from lightning_http import LightningStoreClient, LightningStoreServer
from lightning_http.auth import Keys, Role, Unauthorized

from lightning_core.errors import AccessDenied, ConfigError
from lightning_core.types import PromptTemplate, Span


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def span_of(rollout, attempt_id=None):
    own = attempt_id or rollout.attempt.attempt_id
    return Span.from_attributes(rollout_id=rollout.rollout_id, attempt_id=own, name="step", attributes={})


async def test_every_route_but_health_wants_a_key(guarded, algorithm, ask):
    status, body = await ask("GET", f"{guarded.url}/openapi.json", headers=bearer(KEY))
    assert status == 200
    seen = 0
    for path, methods in body["paths"].items():
        for method in methods:
            for headers in ({}, bearer("wrong"), bearer(""), {"Authorization": KEY}, bearer("agl-at-e30.e30")):
                status, _ = await ask(method.upper(), guarded.url + path, headers=headers)
                assert status == (200 if path == "/v1/agl/health" else 401), (method, path)
            seen += 1
    assert seen > 35
    status, answer = await ask("GET", f"{guarded.url}/v1/agl/no-such-route")
    assert (status, answer["error"]) == (401, "AccessDenied")


async def test_a_wrong_key_is_an_error_at_once(guarded):
    for key, message in (("wrong", "not a key of this store"), ("", "wants a key")):
        client = LightningStoreClient(guarded.url, key=key, retry_seconds=60)
        with pytest.raises(AccessDenied, match=message):
            await client.dequeue_rollout(wait_seconds=None)
        await client.aclose()


async def test_a_key_can_come_from_the_environment(memory, monkeypatch):
    monkeypatch.setenv("AGL_KEY", "from-the-environment")
    async with LightningStoreServer(memory) as server:
        async with LightningStoreClient(server.url) as client:
            assert await client.dequeue_rollout() is None
        client = LightningStoreClient(server.url, key="")
        with pytest.raises(AccessDenied):
            await client.dequeue_rollout()
        await client.aclose()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_a_host_that_others_can_reach_demands_a_key(memory, host):
    with pytest.raises(ConfigError, match=f"host {host} can be reached from other machines, so the store needs a key"):
        LightningStoreServer(memory, host)
    LightningStoreServer(memory, host, key="k")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runner_key": "r"}, "there is a runner_key and no key"),
        ({"key": "k", "runner_key": "k"}, "runner_key and key are the same"),
        ({"key": "two words"}, "the key cannot be sent"),
        ({"key": "schlüssel"}, "the key cannot be sent"),
    ],
)
def test_keys_that_cannot_be_are_refused(memory, options, message):
    with pytest.raises(ConfigError, match=message):
        LightningStoreServer(memory, **options)


async def test_a_runner_can_claim_report_and_read(algorithm, runner):
    resources = await algorithm.add_resources({"p": PromptTemplate(template="a")})
    queued = await algorithm.enqueue_rollout("a")
    await runner.update_worker("w-1", {"load": 1})
    claimed = await runner.dequeue_rollout("w-1")
    await runner.add_span(span_of(claimed))
    assert (await runner.get_resources_by_id(claimed.resources_id)).resources_id == resources.resources_id
    await runner.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
    assert (await runner.get_rollout_by_id(queued.rollout_id)).status == "succeeded"
    other = await algorithm.enqueue_rollout("b")
    claimed = await runner.dequeue_rollout("w-1", wait_seconds=1)
    await runner.report_fault(claimed.rollout_id, claimed.attempt.attempt_id, "the model was out of reach")
    assert (await runner.update_rollout(other.rollout_id, status="cancelled")).status == "cancelled"


async def test_a_runner_cannot_do_what_is_the_algorithms(algorithm, runner, guarded, ask):
    queued = await algorithm.enqueue_rollout("a")
    for call in (
        runner.enqueue_rollout("b"),
        runner.start_rollout("b"),
        runner.add_resources({}),
        runner.update_resources("rs-1", {}),
        runner.update_rollout(queued.rollout_id, input="changed"),
        runner.update_rollout(queued.rollout_id, status="succeeded"),
        runner.delete_rollouts([queued.rollout_id]),
        runner.begin_run(),
        runner.end_run(),
        runner.delete_run(),
        runner.save_state("apo", 1),
        runner.load_state("apo"),
    ):
        with pytest.raises(AccessDenied, match="a key of a runner can"):
            await call
    assert (await algorithm.get_rollout_by_id(queued.rollout_id)).status == "queuing"


async def test_a_key_that_is_not_good_for_a_route_is_refused_before_the_body_is_read(guarded, ask):
    path, headers = f"{guarded.url}/v1/agl/queues/rollouts/enqueue", bearer(RUNNER_KEY)
    status, answer = await ask("POST", path, data=b"{", headers={**headers, "content-type": "application/json"})
    assert (status, answer["error"]) == (403, "AccessDenied")


async def test_the_key_of_an_attempt_can_only_write_to_it(algorithm, guarded, ask):
    mine, other = await algorithm.start_rollout("a"), await algorithm.start_rollout("b")
    key = algorithm.attempt_key(mine.attempt)
    assert key is not None
    assert key != algorithm.attempt_key(other.attempt)
    agent = LightningStoreClient(guarded.url, key=key)
    assert (await agent.add_span(span_of(mine))).sequence_id == 1
    assert await agent.get_next_span_sequence_id(mine.rollout_id, mine.attempt.attempt_id) == 2
    for spans in ([span_of(other)], [span_of(mine), span_of(other)], [span_of(mine, other.attempt.attempt_id)]):
        with pytest.raises(AccessDenied, match=f"this key is for attempt {mine.attempt.attempt_id}"):
            await agent.add_many_spans(spans)
    for call in (
        agent.get_next_span_sequence_id(other.rollout_id, other.attempt.attempt_id),
        agent.get_many_span_sequence_ids([(other.rollout_id, other.attempt.attempt_id)]),
        agent.dequeue_rollout(),
        agent.query_spans(mine.rollout_id),
        agent.update_attempt(mine.rollout_id, mine.attempt.attempt_id, status="succeeded"),
        agent.statistics(),
    ):
        with pytest.raises(AccessDenied):
            await call
    assert (await algorithm.statistics())["total_spans"] == 1
    status, answer = await ask("GET", f"{guarded.url}/metrics", headers=bearer(key))
    assert (status, answer["error"]) == (403, "AccessDenied")
    await agent.aclose()


async def test_the_key_of_an_attempt_is_for_its_run(algorithm, guarded):
    other = algorithm.for_run("run-2")
    started = await other.start_rollout("a")
    key = other.attempt_key(started.attempt)
    agent = LightningStoreClient(guarded.url, key=key)
    assert await agent.add_span(span_of(started)) is not None  # the key says which run
    assert agent.run_id == "run-2"
    await agent.aclose()
    agent = LightningStoreClient(guarded.url, key=key, run_id="run-1")
    with pytest.raises(AccessDenied, match="for an attempt of run run-2"):
        await agent.add_span(span_of(started))
    await agent.aclose()


async def test_every_claim_comes_with_a_key_where_keys_are_used(algorithm, client):
    await algorithm.enqueue_rollout("a")
    claimed = await algorithm.dequeue_rollout()
    again = await algorithm.start_attempt(claimed.rollout_id)
    keys = {algorithm.attempt_key(item.attempt) for item in (claimed, again)}
    assert len(keys) == 2
    assert None not in keys
    started = await client.start_rollout("open to everybody")
    assert client.attempt_key(started.attempt) is None


def test_a_key_of_an_attempt_expires_and_cannot_be_changed():
    keys = Keys("secret", attempt_seconds=10)
    key = keys.mint("run-1", "ro-1", "at-1", 1000.0)
    identity = keys.identify(f"Bearer {key}", 1010.0)
    assert (identity.role, identity.run_id, identity.attempt_id) == (Role.ATTEMPT, "run-1", "at-1")
    with pytest.raises(Unauthorized, match="the key of attempt at-1 has expired"):
        keys.identify(f"Bearer {key}", 1011.0)
    head, _, signature = key.partition(".")
    other, _, _ = keys.mint("run-1", "ro-2", "at-2", 1000.0).partition(".")
    for forged in (f"{other}.{signature}", f"{head}.{signature[:-2]}AA", head, f"{head}.", f"{head}.!", "agl-at-"):
        with pytest.raises(Unauthorized):
            keys.identify(f"Bearer {forged}", 1000.0)
    endless = keys.mint("run-1", "ro-1", "at-1", 1000.0, expires=False)
    assert keys.identify(f"Bearer {endless}", 1e10).attempt_id == "at-1"
    with pytest.raises(Unauthorized):
        Keys("another").identify(f"Bearer {key}", 1000.0)
    assert Keys("secret").identify(f"Bearer {key}", 1000.0) == identity  # a restarted server knows it


async def test_without_a_key_only_this_machine_is_answered(server, ask):
    for host, expected in (("evil.example", 403), ("127.0.0.1", 200), ("localhost:1", 200), ("[::1]:80", 200)):
        status, answer = await ask("GET", f"{server.url}/v1/agl/health", headers={"Host": host})
        assert status == expected, (host, answer)


@pytest.mark.parametrize("text", ["[" * 40_000, '["ro-1", "at-1", null]', "null", "{", "\xff"])
def test_what_a_key_of_an_attempt_says_is_not_read_before_its_signature_is_good(text, monkeypatch):
    keys = Keys("secret")
    alone, of_run = (
        base64.urlsafe_b64encode(run + text.encode("latin-1")).decode().rstrip("=") for run in (b"", b"run-1\0")
    )
    monkeypatch.setattr("lightning_http.auth.json", None)
    for forged in (f"agl-at-{alone}.AAAA", f"agl-at-{of_run}.AAAA", f"agl-at-{of_run}.", f"agl-at-{of_run}"):
        with pytest.raises(Unauthorized):
            keys.identify(f"Bearer {forged}", 1000.0)
