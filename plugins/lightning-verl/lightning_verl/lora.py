"""From the checkpoint of a training with LoRA to a folder of the adapter alone, which vLLM and PEFT load."""

import json
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor, Shard

from lightning_core.errors import AlgorithmError

_META = "lora_train_meta.json"
"""What verl's first worker writes into the checkpoint of an adapter."""


def write_adapter(checkpoint: Path, folder: Path, *, base: str, start: str | None = None) -> None:
    """Write an adapter as PEFT has it: `adapter_config.json` and `adapter_model.safetensors`.

    Args:
        checkpoint: What FSDP has saved of the actor, the parts of all workers.
        folder: Where to; it is made.
        base: The model that the adapter belongs to.
        start: The adapter that the training began with, of which everything but the weights stays.

    Raises:
        AlgorithmError: When a part is missing.
    """
    if not (checkpoint / _META).exists():
        raise AlgorithmError(
            f"the checkpoint {checkpoint} has no {_META} on this machine, and the adapter cannot be written; set "
            "trainer.default_local_dir to a folder that all nodes share"
        )
    from peft import LoraConfig, PeftConfig
    from safetensors.torch import save_file
    from verl.utils.fs import copy_to_local

    weights = {name.replace(".default.", "."): weight for name, weight in _trained(checkpoint).items()}
    if start is not None:
        config = PeftConfig.from_pretrained(copy_to_local(start))
    else:
        meta = json.loads((checkpoint / _META).read_text())
        modules = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in weights})
        config = LoraConfig(
            r=meta["r"], lora_alpha=meta["lora_alpha"], target_modules=modules, task_type=meta["task_type"]
        )
    local = Path(base).expanduser()
    config.base_model_name_or_path = str(local.absolute()) if local.is_dir() else base
    config.inference_mode = True
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def _trained(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Return the weights of the adapter, whole, by verl's names."""
    n_parts = json.loads((checkpoint / "fsdp_config.json").read_text())["world_size"]
    paths = [checkpoint / f"model_world_size_{n_parts}_rank_{rank}.pt" for rank in range(n_parts)]
    if missing := [path.name for path in paths if not path.exists()]:
        raise AlgorithmError(
            f"the checkpoint {checkpoint} has {n_parts - len(missing)} of {n_parts} parts on this machine, "
            f"{missing[0]} is missing; set trainer.default_local_dir to a folder that all nodes share"
        )
    parts = [torch.load(path, map_location="cpu", weights_only=False, mmap=True) for path in paths]
    return {name: _whole([part[name] for part in parts]) for name in parts[0] if ".lora_" in name}


def _whole(parts: list[torch.Tensor]) -> torch.Tensor:
    """Put the parts of a weight together; of several replicas the first ranks have a whole one."""
    first = parts[0]
    if not isinstance(first, DTensor):
        return first.clone()
    placement = first.placements[-1]
    local = [part.to_local() for part in parts[: first.device_mesh.mesh.shape[-1]]]
    return torch.cat(local, dim=placement.dim) if isinstance(placement, Shard) else local[0].clone()
