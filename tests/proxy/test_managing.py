"""What passes through to a backend manages nothing there, but for who has the proxy's own key."""

import asyncio
from typing import Any

import pytest
from yarl import URL

from lightning_core.proxy import Budget
from lightning_core.testing.backend import FakeEngine
from lightning_core.types import AttemptedRollout
from tests.proxy.conftest import MakeProxy

MANAGING = [
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
    ("POST", "/v1/v1//Load_LoRA_adapter"),
    ("POST", "/v1/%66iles"),
    ("GET", "/v1/files"),
    ("GET", "/v1/files/file-1/content"),
    ("POST", "/v1/uploads"),
    ("POST", "/v1/fine_tuning/jobs"),
    ("POST", "/v1/batches"),
    ("POST", "/v1/evals"),
    ("POST", "/v1/assistants"),
    ("POST", "/v1/threads/1/runs"),
    ("POST", "/v1/vector_stores"),
    ("POST", "/v1/containers"),
    ("GET", "/v1/organization/costs"),
    ("POST", "/v1/admin"),
    ("DELETE", "/v1/models/ft:gpt"),
    ("POST", "/v1/models"),
    ("DELETE", "/v1/chat/completions/1"),
    ("PATCH", "/v1/anything"),
    ("PUT", "/v1/anything"),
]


@pytest.mark.parametrize(("method", "path"), MANAGING)
@pytest.mark.parametrize("key", ["", "secret"])
async def test_an_agent_does_not_manage_the_backend(
    http: Any, make_proxy: MakeProxy, engine: FakeEngine, attempt: AttemptedRollout, method: str, path: str, key: str
) -> None:
    proxy = await make_proxy(engine, key=key)
    ids = attempt.rollout_id, attempt.attempt.attempt_id
    url = URL(f"{proxy.url}/rollout/{ids[0]}/attempt/{ids[1]}{path}", encoded=True)
    async with http.request(method, url, headers={"authorization": f"Bearer {proxy.attempt_key(*ids)}"}) as response:
        answer = await response.json()
    assert (response.status, answer["error"]["code"]) == (403, "not_allowed")
    assert "manages the backend, which is not for agents" in answer["error"]["message"]
    assert engine.received == []


@pytest.mark.parametrize(("method", "path"), MANAGING)
@pytest.mark.parametrize("is_of_attempt", [False, True], ids=["alone", "attempt"])
async def test_whoever_has_the_key_of_the_proxy_does(
    http: Any,
    make_proxy: MakeProxy,
    engine: FakeEngine,
    attempt: AttemptedRollout,
    method: str,
    path: str,
    is_of_attempt: bool,
) -> None:
    proxy = await make_proxy(engine, key="secret")
    base = f"/rollout/{attempt.rollout_id}/attempt/{attempt.attempt.attempt_id}" if is_of_attempt else ""
    url = URL(f"{proxy.url}{base}{path}", encoded=True)
    async with http.request(method, url, headers={"authorization": "Bearer secret"}) as response:
        assert response.status == 201
    assert len(engine.received) == 1


async def test_the_backend_is_managed_in_a_pause_and_whatever_the_budget_is(
    http: Any, make_proxy: MakeProxy, engine: FakeEngine
) -> None:
    budget = Budget(calls=1)
    proxy = await make_proxy(engine, key="secret", budget=budget)
    await proxy.pause()
    url = f"{proxy.url}/v1/load_lora_adapter"
    for _ in range(2):
        async with asyncio.timeout(20), http.post(url, headers={"authorization": "Bearer secret"}) as response:
            assert response.status == 201
    assert budget.used["calls"] == 0


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/audio/speech"),
        ("GET", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/filesystem"),
    ],
)
async def test_other_calls_are_an_agents_own(
    http: Any, make_proxy: MakeProxy, engine: FakeEngine, attempt: AttemptedRollout, method: str, path: str
) -> None:
    proxy = await make_proxy(engine, key="secret")
    key = proxy.attempt_key(attempt.rollout_id, attempt.attempt.attempt_id)
    async with http.request(method, f"{proxy.url}{path}", headers={"authorization": f"Bearer {key}"}) as response:
        assert response.status == 201
