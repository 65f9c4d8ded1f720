"""Model calls of an algorithm itself: what is left of them after a kill is run by nobody."""

from lightning_core import InMemoryLightningStore
from lightning_core.algorithm.own_calls import cancel_own_calls, is_of_algorithm, own_calls
from lightning_core.proxy import LLMProxy


async def test_what_a_killed_process_has_left_is_queued_for_no_agent() -> None:
    store = InMemoryLightningStore()
    proxy = LLMProxy(store=store, port=4748, model_list=[{"model_name": "m", "litellm_params": {"model": "openai/m"}}])
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
