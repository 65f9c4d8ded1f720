"""What a training needs of its environment: distributions of versions that were tried, and an engine."""

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


def count_gpus(root: Path = Path("/")) -> int:
    """Return how many of NVIDIA's GPUs this process may use; 0 where none can be counted.

    Args:
        root: Where the system is.
    """
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return sum(name.strip() not in ("", "-1") for name in chosen.split(","))
    return sum(1 for _ in root.glob("dev/nvidia[0-9]*"))


def check_engine(engine: str) -> None:
    """Refuse to generate with an engine that is not installed.

    Args:
        engine: Which one generates: `actor_rollout_ref.rollout.name`.

    Raises:
        ConfigError: When it is not there.
    """
    if engine in ("vllm", "sglang") and find_spec(engine) is None:
        raise ConfigError(
            f"actor_rollout_ref.rollout.name is {engine!r}, which is not installed; to train on this machine's "
            "processor, set agentlightning.device: cpu. For GPUs make the environment as lightning-verl's README says, "
            "or set the name to hf, which is slow"
        )
