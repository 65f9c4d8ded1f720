"""A call of verl's own client that is cancelled ends at the server, in a real actor of Ray."""

import asyncio
from typing import Any

import pytest
import ray
from omegaconf import OmegaConf

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),  # of verl
]


class Endless:
    """Generates until its call is cancelled, as an engine does whose answer is long."""

    def __init__(self) -> None:
        self._begun = asyncio.Event()
        self._cancelled = asyncio.Event()

    async def generate(self, **_: Any) -> None:
        self._begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self._cancelled.set()

    async def has_begun(self) -> None:
        await self._begun.wait()

    async def was_cancelled(self) -> None:
        await self._cancelled.wait()


@pytest.mark.parametrize("name", ["LLMServerClient", "FullyAsyncLLMServerClient"])
async def test_a_cancelled_call_ends_at_the_server_and_frees_its_place(name: str, shared_ray: None) -> None:
    from lightning_verl.verl_internals.trainer import RAY_ENDS, CancelsCalls
    from verl.workers.rollout import llm_server
    from verl.workers.rollout.router import GlobalRequestLoadBalancer

    RAY_ENDS.clear()  # a training of this process may have ended before
    server = ray.remote(Endless).options(num_cpus=0, max_concurrency=8).remote()
    balancer = ray.remote(GlobalRequestLoadBalancer).options(num_cpus=0).remote({"first": server})
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "vllm"}}})
    client = type("Client", (CancelsCalls, getattr(llm_server, name)), {})(config, balancer)
    call = asyncio.create_task(client.generate("r", prompt_ids=[1], sampling_params={"max_tokens": 8}))
    async with asyncio.timeout(120):
        await server.has_begun.remote()
        assert await balancer.get_total_inflight.remote() == 1
        call.cancel()
        await server.was_cancelled.remote()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await balancer.get_total_inflight.remote() == 0
    RAY_ENDS.set()
    try:
        with pytest.raises(RuntimeError, match="the training has ended, and with it the model"):
            await client.generate("late", prompt_ids=[1], sampling_params={"max_tokens": 8})
    finally:
        RAY_ENDS.clear()
