"""Model calls of an algorithm itself: how long they are let through, and that no agent runs what is left of them."""

import time
from typing import Any

import pytest
from lightning_http.auth import Keys, Role
from lightning_proxy import LLMProxy
from lightning_proxy.remote import RemoteProxy

from lightning_core import InMemoryLightningStore
from lightning_core.algorithm.own_calls import cancel_own_calls, is_of_algorithm, own_calls
from lightning_core.errors import ConfigError

MODELS = [{"model_name": "m", "litellm_params": {"model": "openai/m"}}]


async def test_what_a_killed_process_has_left_is_queued_for_no_agent() -> None:
    store = InMemoryLightningStore()
    proxy = LLMProxy(store=store, port=4748, model_list=MODELS)
    killed = own_calls(store, proxy, algorithm="mine")
    await killed.__aenter__()  # and never left
    await store.enqueue_rollout("a task")
    await store.report_dead_workers("the process that ran it was killed")
    assert {each.status for each in await store.query_rollouts()} == {"requeuing", "queuing"}
    await cancel_own_calls(store)
    (own,) = [each for each in await store.query_rollouts() if is_of_algorithm(each)]
    assert own.status == "cancelled"
    claimed = await store.dequeue_rollout()
    assert claimed is not None
    assert claimed.input == "a task"
    assert await store.dequeue_rollout() is None


@pytest.mark.parametrize("is_remote", [False, True], ids=["of this run", "by itself"])
async def test_they_are_let_through_in_a_run_of_many_days(is_remote: bool) -> None:
    store = InMemoryLightningStore()
    async with LLMProxy(store=store, key="secret", model_list=MODELS) as own:
        proxy: Any = own
        if is_remote:
            proxy = RemoteProxy(own.url, key="secret")
            proxy.set_store(store)
            await proxy.start()
        async with own_calls(store, proxy, algorithm="mine") as llm:
            (rollout,) = await store.query_rollouts()
            who = Keys("secret").identify(f"Bearer {llm.api_key}", time.time() + 30 * 86_400)
        if is_remote:
            await proxy.stop()
    assert (who.role, who.rollout_id) == (Role.ATTEMPT, rollout.rollout_id)
    assert [each.status for each in await store.query_rollouts()] == ["succeeded"]


async def test_a_proxy_without_a_model_is_told_before_anything_is_queued() -> None:
    store = InMemoryLightningStore()
    with pytest.raises(ConfigError, match="the algorithm mine calls a model through the model proxy, which has none"):
        async with own_calls(store, LLMProxy(store=store, key="", port=4748), algorithm="mine"):
            pass
    assert list(await store.query_rollouts()) == []
