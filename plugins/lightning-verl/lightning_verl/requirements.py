"""What a training needs of its environment: distributions of versions that were tried, and an accelerator."""

import os
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

from lightning_core.errors import ConfigError


def check_versions() -> None:
    """Refuse what is missing, or of a version that this package does not ask of pip. Imports none of it.

    verl's trainer is not a stable API yet, so its versions are those that were tried.

    Raises:
        ConfigError: Names everything that is wrong, and what to install.
    """
    faults = []
    for wanted in map(Requirement, metadata.requires("lightning-verl") or ()):
        try:
            found = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            faults.append(f"{wanted.name} is not installed, {wanted} is needed")
        else:
            if not wanted.specifier.contains(found, prereleases=True):
                faults.append(f"{wanted.name} is {found}, {wanted} is needed")
    if faults:
        raise ConfigError(f"{'; '.join(faults)}. Make the environment as lightning-verl's README says")


_SIGNS = ("dev/nvidia[0-9]*", "dev/nvidiactl", "dev/dxg", "dev/kfd", "dev/davinci[0-9]*")
"""What the drivers of NVIDIA's, AMD's and Ascend's accelerators put below the root."""


def has_accelerator(root: Path = Path("/")) -> bool:
    """Say whether the driver of an accelerator shows one on this machine."""
    return any(next(root.glob(sign), None) is not None for sign in _SIGNS)


def count_gpus(root: Path = Path("/")) -> int:
    """Return how many of NVIDIA's GPUs this process may use; 0 where none can be counted.

    Args:
        root: Where the system is.
    """
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return sum(name.strip() not in ("", "-1") for name in chosen.split(","))
    return sum(1 for _ in root.glob("dev/nvidia[0-9]*"))


def check_accelerator(device: str | None, *, engine: str, is_elsewhere: bool, root: Path = Path("/")) -> None:
    """Refuse to train on an accelerator, or to generate with an engine, where there is none.

    Args:
        device: What the configuration says.
        engine: Which one generates: `actor_rollout_ref.rollout.name`.
        is_elsewhere: Whether a cluster is used, whose machines are not this one.
        root: Where the system is.

    Raises:
        ConfigError: When there is none.
    """
    if is_elsewhere:
        return
    if device != "cpu" and not has_accelerator(root):
        raise ConfigError(
            "this machine shows no GPU; to train on its processor, set agentlightning.device: cpu in verl's config"
        )
    if engine in ("vllm", "sglang") and find_spec(engine) is None:
        raise ConfigError(
            f"actor_rollout_ref.rollout.name is {engine!r}, which is not installed; make the environment for GPUs as "
            "lightning-verl's README says, or set it to hf, which is slow"
        )
