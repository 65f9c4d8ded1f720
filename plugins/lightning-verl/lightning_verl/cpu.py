"""The platform `cpu` of verl's registry.

verl loads it in every process, through the entry-point group `verl.plugins`, and hides what goes wrong then: so this
module stays light. It is never detected; only `VERL_PLATFORM=cpu` chooses it. The module itself stands for
`torch.cuda`: it has the functions that verl looks for there, or `torch.cpu` has them.
"""

import sys
from contextlib import nullcontext
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


def _nothing(*_: Any, **__: Any) -> None:
    """There is no cache, no profiler, and nothing runs behind the program's back."""


def _zero(*_: Any) -> int:
    """Return 0: there is no device memory, of which verl tells how much is used."""
    return 0


def is_available() -> bool:
    """Whether there is device memory to manage: there is none, so verl's memory helpers do nothing."""
    return False


def current_device() -> torch.device:
    """Return what tensors and modules are moved to: `.to(0)`, which verl would write, means a GPU."""
    return torch.device("cpu")


def device_count() -> int:
    """Return 1: the processor, however many cores it has."""
    return 1


def get_device_name(*_: Any) -> str:
    """Return the name under which verl looks up how fast a device is. It knows none for this one."""
    return "CPU"


def get_rng_state(*_: Any) -> torch.Tensor:
    """Return the state of torch's generator."""
    return torch.get_rng_state()


def set_rng_state(state: torch.Tensor, *_: Any) -> None:
    """Set the state of torch's generator."""
    torch.set_rng_state(state)


def mem_get_info(*_: Any) -> tuple[int, int]:
    """Return how many bytes of device memory are free, and how many there are: none."""
    return 0, 0


empty_cache = reset_peak_memory_stats = _nothing
memory_allocated = memory_reserved = max_memory_allocated = max_memory_reserved = _zero


def __getattr__(name: str) -> Any:
    return getattr(torch.cpu, name)


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """The machine's processor in the place of accelerators."""

    device_name = vendor_name = "cpu"
    device_module = sys.modules[__name__]
    current_device = staticmethod(current_device)
    device_count = staticmethod(device_count)
    set_device = synchronize = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Return whether detection may pick it: never, or a machine whose GPU is broken would train without it."""
        return False

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg: str) -> nullcontext[None]:
        return nullcontext()

    def ray_resource_name(self) -> str:
        """Return what a worker takes one of: verl's pools count only GPUs, so Ray has pretended ones."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False
