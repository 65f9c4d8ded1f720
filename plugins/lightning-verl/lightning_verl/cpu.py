"""The platform `cpu` of verl's registry.

verl loads it in every process, through the entry-point group `verl.plugins`, and hides what goes wrong then: so this
module stays light. It is never detected; only `VERL_PLATFORM=cpu` chooses it. The module itself stands for
`torch.cuda`: it has the functions that verl looks for there, or `torch.cpu` has them. Memory is that of the process.
"""

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import psutil  # type: ignore[import-untyped]
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


def is_available() -> bool:
    """Whether there is device memory to manage: there is none, so verl's memory helpers do nothing."""
    return False


def current_device() -> torch.device:
    """Return what tensors and modules are moved to."""
    return torch.device("cpu")


def device_count() -> int:
    """Return 1: the processor, however many cores it has."""
    return 1


def get_device_name(*_: Any) -> str:
    """Return the name under which verl looks up how fast a device is. It knows none for this one."""
    return "CPU"


def empty_cache() -> None:
    """There is no cache."""


def reset_peak_memory_stats(*_: Any) -> None:
    """The system keeps the peak of a process for as long as it lives."""


def get_rng_state(*_: Any) -> torch.Tensor:
    """Return the state of torch's generator."""
    return torch.get_rng_state()


def set_rng_state(state: torch.Tensor, *_: Any) -> None:
    """Set the state of torch's generator."""
    torch.set_rng_state(state)


def memory_allocated(*_: Any) -> int:
    """Return how many bytes the process holds."""
    return int(psutil.Process().memory_info().rss)


def max_memory_allocated(*_: Any) -> int:
    """Return the most bytes that the process has held."""
    # The system notes the peak late.
    return max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, memory_allocated())


memory_reserved = memory_allocated
max_memory_reserved = max_memory_allocated


def mem_get_info(*_: Any) -> tuple[int, int]:
    """Return how many bytes of the machine's memory are available, and how many there are."""
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def __getattr__(name: str) -> Any:
    return getattr(torch.cpu, name)


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """The machine's processor in the place of accelerators."""

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        return sys.modules[__name__]

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Return whether detection may pick it: never, or a machine whose GPU is broken would train without it."""
        return False

    def current_device(self) -> torch.device:
        """Return the device itself: `.to(0)`, which verl would write, means a GPU."""
        return current_device()

    def device_count(self) -> int:
        return device_count()

    def set_device(self, device_index: int) -> None:
        """There is one."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Nothing runs behind the program's back."""

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """The allocator is the system's."""

    def empty_cache(self) -> None:
        """There is no cache."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        """There is no device profiler."""

    def profiler_stop(self) -> None:
        """There is no device profiler."""

    def ray_resource_name(self) -> str:
        """Return what a worker takes one of: verl's pools count only GPUs, so Ray has pretended ones."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None
