"""Where in a checkpoint the model is, in a form that vLLM loads."""

from omegaconf import DictConfig

ADAPTER = "lora_adapter"
"""The folder of an adapter, in the checkpoint of an actor that FSDP trains."""

_HF = "huggingface"


def has_lora(config: DictConfig) -> bool:
    """Whether an adapter is trained, and not the whole model."""
    model = config.actor_rollout_ref.model
    return bool(model.lora_rank > 0 or model.lora.rank > 0)


def servable_folder(config: DictConfig) -> str | None:
    """Return the folder in each checkpoint that vLLM loads, of a model or of an adapter; None where there is none.

    Args:
        config: verl's.
    """
    actor = config.actor_rollout_ref.actor
    contents = actor.checkpoint.save_contents
    if actor.strategy == "megatron":
        megatron = actor.megatron
        if "hf_model" not in contents and ("model" not in contents or megatron.use_dist_checkpointing):
            return None
        if has_lora(config):  # the older bridge has no form for adapters
            return None if megatron.vanilla_mbridge else f"actor/model/{_HF}/adapter"
        return f"actor/model/{_HF}"
    if not str(actor.strategy).startswith("fsdp"):
        return None
    if has_lora(config):
        return f"actor/{ADAPTER}" if "model" in contents else None
    return f"actor/{_HF}" if "hf_model" in contents else None
