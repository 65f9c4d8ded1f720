"""Whether there is an accelerator, found out without importing torch."""

from pathlib import Path

from lightning_core.errors import ConfigError

_SIGNS = ("dev/nvidia[0-9]*", "dev/nvidiactl", "dev/dxg", "dev/kfd", "dev/davinci[0-9]*")
"""What the drivers of NVIDIA's, AMD's and Ascend's accelerators put below the root."""


def has_accelerator(root: Path = Path("/")) -> bool:
    """Say whether the driver of an accelerator shows one on this machine."""
    return any(next(root.glob(sign), None) is not None for sign in _SIGNS)


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
