"""What verl's trainer starts and steers: one generating process for each training worker."""

from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from verl.utils.device import get_device_name, get_visible_devices_keyword
from verl.workers.rollout.replica import RolloutReplica

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
