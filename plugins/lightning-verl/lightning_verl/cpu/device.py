"""The processor, with the functions that verl looks for in `torch.cuda`.

`torch.cpu` has some of them; whatever is not here is taken from there. Memory is that of the process.
"""

import resource
from typing import Any

import psutil  # type: ignore[import-untyped]
import torch


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
