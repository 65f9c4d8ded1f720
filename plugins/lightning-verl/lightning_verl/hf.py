"""Generation with Hugging Face's `generate` in the place of vLLM: slow, and runs wherever torch does.

`actor_rollout_ref.rollout.name=hf`: what verl starts and steers, one generating process for each training worker, and
the worker's side of it.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import ray
import torch
from lightning_tokens.batcher import Batcher, Rejected
from lightning_tokens.engine import Generated
from lightning_tokens.generator import Generator
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from verl.plugin.platform import get_platform
from verl.utils.device import get_device_name, get_visible_devices_keyword
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator

from lightning_core.errors import ConfigError

_STOP_REASONS = {"stop": "completed", "length": "length", "abort": "aborted"}
_TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


class HFServer:
    """Becomes a Ray actor; every method may be called at any time.

    Args:
        path: The model.
        max_batch: The most prompts at the same time.
        max_tokens: The longest answer, where a request does not say.
        options: Those of `Generator.load`.
    """

    def __init__(self, path: str, *, max_batch: int, max_tokens: int, options: Mapping[str, Any]) -> None:
        self._generator = Generator.load(path, **options)
        self._limits = {"max_batch": max_batch, "default_max_tokens": max_tokens}

    async def start(self) -> None:
        """Take requests."""
        self._batcher = Batcher(self._generator, **self._limits)
        self._running = asyncio.create_task(self._batcher.run(), name="batches")

    # What verl's client calls

    async def generate(
        self, request_id: str, *, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], **_: Any
    ) -> TokenOutput:
        """Continue a prompt. To one that is refused nothing is added, and verl's client goes to another server."""
        try:
            answer = await self._batcher.generate(list(prompt_ids), sampling_params)
        except Rejected:
            answer = Generated([], [], "abort")
        version = self._batcher.version if answer.weight_versions is None else answer.weight_versions[0]
        return TokenOutput(
            token_ids=answer.token_ids,
            log_probs=answer.logprobs,
            stop_reason=_STOP_REASONS[answer.finish_reason or "abort"],
            extra_fields={"global_steps": version},
        )

    # What the training worker calls

    async def update_weights(self, weights: Mapping[str, Any], global_steps: int | None) -> None:
        """Take other weights."""
        await self._batcher.update(partial(self._generator.take, weights, global_steps), global_steps)

    async def fingerprint(self) -> str:
        """Return a digest of the weights, to tell whether they have changed."""
        return await asyncio.to_thread(self._generator.fingerprint)

    # What verl's replica calls

    async def wake_up(self) -> None:
        """Take requests."""
        self._batcher.open()

    async def sleep(self) -> None:
        """Let requests wait."""
        await self._batcher.close()

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        """Give back what there is of the answers under way, and let further requests wait, or refuse them."""
        await self._batcher.close(abort=True, reject=reject_request)

    resume_generation = wake_up


def visible_devices(devices: str) -> dict[str, str]:
    """Return the environment of a process that takes no GPU of Ray's, and uses those of its training worker.

    Ray before 2.60 hides all GPUs from such a process, unless it is told to leave the variable alone.
    """
    if get_device_name() == "cpu":
        return {}
    return {get_visible_devices_keyword(): devices, **dict.fromkeys(get_platform().ray_noset_envvars(), "1")}


class HFReplica(RolloutReplica):  # type: ignore[misc]
    """A replica of the model, on the node and the device of its training worker."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.world_size != 1:
            raise ConfigError(
                "rollout.name=hf keeps the whole model in one process; set tensor_model_parallel_size, "
                f"data_parallel_size and pipeline_model_parallel_size to 1, they make {self.world_size} together"
            )

    async def launch_servers(self) -> None:
        """Start the process next to its training worker."""
        group, devices = await self.workers[0].__ray_call__.remote(_whereabouts)
        self._server_address = _name_of(self.replica_rank)  # it is called through Ray alone
        self._server_handle = (
            ray.remote(HFServer)
            .options(
                name=self._server_address,
                num_cpus=0,
                max_concurrency=self.max_concurrency,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group),  # which is on one node, and ends with it
                runtime_env={"env_vars": visible_devices(devices)},
            )
            .remote(
                self.model_config.path,
                max_batch=self.config.max_num_seqs,
                max_tokens=self.config.response_length,
                options={
                    "device": get_device_name(),
                    "dtype": _TYPES.get(self.config.dtype, self.config.dtype),
                    "seed": self.config.seed + self.replica_rank,
                    "trust_remote_code": self.model_config.trust_remote_code,
                },
            )
        )
        self.servers.append(self._server_handle)
        await self._server_handle.start.remote()


def _name_of(replica_rank: int) -> str:
    return f"hf_server_{replica_rank}"


def _whereabouts(worker: Any) -> tuple[Any, str]:
    devices = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    return ray.util.get_current_placement_group(), ",".join(devices)


class WeightSender(BaseRollout):  # type: ignore[misc]
    """Steers the replica of its rank. Each rank has to take all weights, for gathering them is a joint operation."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        self._replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        self._actor: Any = None

    @property
    def _server(self) -> Any:
        """The replica's actor, which starts after this worker."""
        if self._actor is None:
            self._actor = ray.get_actor(_name_of(self._replica_rank))
        return self._actor

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
        if wire_format != "named_tensors" or peft_config is not None:
            raise ConfigError(
                "rollout.name=hf takes whole weights: use checkpoint_engine.backend=naive, lora.merge=True"
            )
        taken: dict[str, torch.Tensor] = {
            name: weight.detach().cpu().clone() async for name, weight in ensure_async_iterator(weights)
        }
        await self._server.update_weights.remote(taken, global_steps)
