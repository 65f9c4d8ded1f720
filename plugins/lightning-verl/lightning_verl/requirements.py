"""What a training needs of its environment: distributions of versions that were tried, and an accelerator."""

import os
from importlib import metadata
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from lightning_core.errors import ConfigError

SUPPORTED = {
    "verl": ">=0.9.1,<0.10",
    "TransferQueue": ">=0.1.11,<0.2",
    "ray": ">=2.41",
    "tensordict": ">=0.10,<0.11",
    "torch": ">=2.7",
    "transformers": ">=5.5.3,<5.11",
}
"""By distribution. verl's trainer is not a stable API yet, so its versions are those that were tried."""


def check_versions() -> None:
    """Refuse what is missing, or of a version that was not tried. Imports none of it.

    Raises:
        ConfigError: Names everything that is wrong, and what to install.
    """
    faults = []
    for name, wanted in SUPPORTED.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            faults.append(f"{name} is not installed, {name}{wanted} is needed")
            continue
        if not SpecifierSet(wanted).contains(Version(found), prereleases=True):
            faults.append(f"{name} is {found}, {name}{wanted} is needed")
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


def check_accelerator(device: str | None, *, is_elsewhere: bool, root: Path = Path("/")) -> None:
    """Refuse to train on an accelerator where there is none.

    Args:
        device: What the configuration says.
        is_elsewhere: Whether a cluster is used, whose machines are not this one.
        root: Where the system is.

    Raises:
        ConfigError: When there is none.
    """
    if device != "cpu" and not is_elsewhere and not has_accelerator(root):
        raise ConfigError(
            "this machine shows no GPU; to train on its processor, set agentlightning.device: cpu in verl's config"
        )
