"""What verl starts and steers, one generating process for each training worker; and the worker's side of it."""

import os
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from verl.utils.device import get_device_name, get_visible_devices_keyword
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica
from verl.workers.rollout.utils import ensure_async_iterator

from lightning_core.errors import ConfigError
from lightning_verl.hf import NAME
from lightning_verl.hf.server import HFServer


def server_name(replica_rank: int) -> str:
    """Return the name of a replica's actor in Ray."""
    return f"{NAME}_server_{replica_rank}"


class HFReplica(RolloutReplica):  # type: ignore[misc]
    """A replica of the model, on the node and the device of its training worker."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.world_size != 1:
            raise ConfigError(
                f"rollout.name={NAME} keeps the whole model in one process; set tensor_model_parallel_size, "
                f"data_parallel_size and pipeline_model_parallel_size to 1, they make {self.world_size} together"
            )

    async def launch_servers(self) -> None:
        """Start the process next to its training worker."""
        group, devices = await self.workers[0].__ray_call__.remote(_whereabouts)
        device = get_device_name()
        environment = {} if device == "cpu" else {get_visible_devices_keyword(): devices}
        server = (
            ray.remote(HFServer)
            .options(
                name=server_name(self.replica_rank),
                num_cpus=0,
                max_concurrency=self.max_concurrency,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group),  # which is on one node, and ends with it
                runtime_env={"env_vars": environment},
            )
            .remote(
                self.model_config.path,
                device=device,
                dtype={"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}.get(
                    self.config.dtype, self.config.dtype
                ),
                seed=self.config.seed + self.replica_rank,
                max_tokens=self.config.response_length,
                max_batch=self.config.max_num_seqs,
                trust_remote_code=self.model_config.trust_remote_code,
            )
        )
        alone = sum(bool(each["Alive"]) for each in ray.nodes()) == 1
        host = "127.0.0.1" if alone else await self.workers[0].__ray_call__.remote(_address)
        self.servers.append(server)
        self._server_handle = server
        self._server_address = await server.start.remote(host)


def _whereabouts(worker: Any) -> tuple[Any, str]:
    devices = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    return ray.util.get_current_placement_group(), ",".join(devices)


def _address(worker: Any) -> str:
    return str(ray.util.get_node_ip_address())


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
