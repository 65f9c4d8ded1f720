"""What verl imports wherever it makes a model, on any device (`model.external_lib`), and the class of its critic.

It makes our generating server known, lets the critic use the attention that the configuration names, and registers
verl's engines for the processor: what they do that needs an accelerator is overridden there; the rest is verl's.
"""

import copy
import os
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed
import verl.utils.model
from transformers import AutoModelForTokenClassification
from verl.utils.device import get_device_name
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker, TrainingWorkerConfig
from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplicaRegistry

_STRATEGIES = ["fsdp", "fsdp2"]


def _replica() -> type:
    from lightning_verl.hf import HFReplica

    return HFReplica


def load_critic(local_path: str, torch_dtype: torch.dtype, model_config: Any, trust_remote_code: bool) -> Any:
    """Load a model with a head of one value a token. verl's own loader wants flash-attn, whatever is configured."""
    return AutoModelForTokenClassification.from_pretrained(
        local_path,
        dtype=torch_dtype,
        config=model_config,
        attn_implementation=model_config._attn_implementation,
        trust_remote_code=trust_remote_code,
    )


RolloutReplicaRegistry.register("hf", _replica)
# The side of the training worker has no public registry in verl 0.9.
base._ROLLOUT_REGISTRY[("hf", "async")] = "lightning_verl.hf.WeightSender"
if find_spec("flash_attn") is None:
    verl.utils.model.load_valuehead_model = load_critic


class LightningTrainingWorker(TrainingWorker):  # type: ignore[misc]
    """Trains one model: the critic on any device, for verl makes its configuration elsewhere, without this module.

    On a processor verl would ask for the backends `cpu:gloo,cpu:gloo`, which torch refuses as a duplicate.
    """

    def __init__(self, config: TrainingWorkerConfig) -> None:
        if get_device_name() == "cpu" and not torch.distributed.is_initialized():
            # verl leaves a group alone that is there.
            torch.distributed.init_process_group(
                "cpu:gloo",
                rank=int(os.environ["RANK"]),
                world_size=int(os.environ["WORLD_SIZE"]),
                init_method=os.environ.get("DIST_INIT_METHOD"),
            )
        super().__init__(config)


class CpuActorRolloutRefWorker(ActorRolloutRefWorker):  # type: ignore[misc]
    """Holds the actor and the reference, and sends weights to where text is generated."""

    actor_worker_cls = LightningTrainingWorker
    ref_worker_cls = LightningTrainingWorker


class _WithoutOffload:
    """Keeps a model where it is.

    verl offloads a model that is never trained (the reference) through pinned memory, which only an accelerator has.
    """

    engine_config: Any

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        asked = self.engine_config
        self.engine_config = copy.copy(asked)
        for name in ("forward_only", "offload_policy"):
            object.__setattr__(self.engine_config, name, False)  # verl's configs are frozen
        try:
            return super()._build_fsdp_module(module)  # type: ignore[misc]
        finally:
            self.engine_config = asked


@EngineRegistry.register(model_type="language_model", backend=_STRATEGIES, device="cpu")
class CpuLanguageModelEngine(_WithoutOffload, FSDPEngineWithLMHead):  # type: ignore[misc]
    """Trains the actor, or computes the log-probabilities of the reference."""


EngineRegistry.register(model_type="value_model", backend=_STRATEGIES, device="cpu")(FSDPEngineWithValueHead)
