"""verl's FSDP engines and training workers on the processor: the actor and the reference, and the critic.

verl registers its own for CUDA and NPU. What they do that needs an accelerator is overridden; the rest is theirs. verl
imports this wherever it makes a model (`model.external_lib`), which registers the engines, and the server `hf`.
"""

import copy
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed
from transformers import AutoModelForTokenClassification
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker, TrainingWorkerConfig

import lightning_verl.hf.register  # noqa: F401

_STRATEGIES = ["fsdp", "fsdp2"]


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


@EngineRegistry.register(model_type="value_model", backend=_STRATEGIES, device="cpu")
class CpuValueModelEngine(_WithoutOffload, FSDPEngineWithValueHead):  # type: ignore[misc]
    """Trains the critic."""

    def _build_module(self) -> torch.nn.Module:
        """Load the model with a head of one value a token; verl's loader would want flash attention."""
        config = self.model_config.hf_config
        config.num_labels = 1
        config.classifier_dropout = 0.0
        model: torch.nn.Module = AutoModelForTokenClassification.from_pretrained(
            self.model_config.local_path,
            config=config,
            dtype=torch.float32,
            attn_implementation="sdpa",
            trust_remote_code=self.model_config.trust_remote_code,
        )
        return model


class CpuTrainingWorker(TrainingWorker):  # type: ignore[misc]
    """Trains one model. verl would ask for the backends `cpu:gloo,cpu:gloo`, which torch refuses as a duplicate."""

    def __init__(self, config: TrainingWorkerConfig) -> None:
        if not torch.distributed.is_initialized():
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

    actor_worker_cls = CpuTrainingWorker
    ref_worker_cls = CpuTrainingWorker


class CpuDetachActorWorker(DetachActorWorker):  # type: ignore[misc]
    """The same, for the mode `separate_async`."""

    actor_worker_cls = CpuTrainingWorker
    ref_worker_cls = CpuTrainingWorker

    @property
    def copy_handler(self) -> Callable[[torch.nn.Module], Any]:
        """Return what keeps a model's weights for later: a copy. What verl's keeps would be their own memory here."""
        keep = super().copy_handler
        return lambda module: _copied(keep(module))


def _copied(kept: Any) -> Any:
    match kept:
        case torch.Tensor():
            return kept.clone()
        case dict():
            return {name: _copied(each) for name, each in kept.items()}
        case tuple():
            return tuple(map(_copied, kept))
        case _:
            return kept
