"""verl's FSDP engines on the processor: the actor and the reference, and the critic.

verl registers its own for CUDA and NPU. What they do that needs an accelerator is overridden; the rest is theirs.
"""

import copy
from typing import Any

import torch
from transformers import AutoModelForTokenClassification
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

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
