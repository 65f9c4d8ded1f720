"""The training worker's side: sends its weights to the process that generates."""

import os
from typing import Any

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.utils import ensure_async_iterator

from lightning_core.errors import ConfigError
from lightning_verl.hf.replica import server_name


class WeightSender(BaseRollout):  # type: ignore[misc]
    """Steers the replica of its rank. Each rank has to take all weights, for gathering them is a joint operation."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        self._replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        self._found: Any = None

    @property
    def _server(self) -> Any:
        """The replica's actor, which starts after this worker."""
        if self._found is None:
            self._found = ray.get_actor(server_name(self._replica_rank))
        return self._found

    async def resume(self, tags: list[str]) -> None:
        """Let it generate, once it has everything."""
        if "kv_cache" in tags:
            await self._server.wake_up.remote()

    async def release(self) -> None:
        """Let requests wait."""
        await self._server.sleep.remote()

    async def update_weights(
        self,
        weights: Any,
        wire_format: str = "named_tensors",
        *,
        global_steps: int | None = None,
        peft_config: Any = None,
        **_: Any,
    ) -> None:
        """Send all weights."""
        if wire_format != "named_tensors":
            raise ConfigError(f"rollout.name=hf takes whole weights, not {wire_format!r}: use the naive backend")
        if peft_config is not None:
            raise ConfigError("rollout.name=hf takes no adapters; set actor_rollout_ref.model.lora.merge=True")
        taken: dict[str, torch.Tensor] = {
            name: weight.detach().cpu().clone() async for name, weight in ensure_async_iterator(weights)
        }
        await self._server.update_weights.remote(taken, global_steps)
