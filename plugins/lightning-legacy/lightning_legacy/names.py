"""Small things of agentlightning 0.3 that nothing here needs, and scripts may."""

import logging
import secrets
import warnings
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Protocol, TypeVar

from lightning_core.lifecycle import ENDED, QUEUED
from lightning_core.logs import setup_module_logging
from lightning_core.types import Rollout

T_contra = TypeVar("T_contra", contravariant=True)


class Function(Protocol[T_contra]):
    """Whatever a decorator of 0.3 takes, such as `LlmRolloutFunc[MyTask]`."""

    def __call__(self, task: T_contra, /, *args: Any, **kwargs: Any) -> Any:
        """Do the work."""
        ...


class SpanNames(StrEnum):
    """Names of spans and resource attributes; see `lightning_core.semconv`."""

    REWARD = "agentlightning.reward"
    MESSAGE = "agentlightning.message"
    OBJECT = "agentlightning.object"
    EXCEPTION = "agentlightning.exception"
    VIRTUAL = "agentlightning.virtual"
    ROLLOUT_ID = "agentlightning.rollout_id"
    ATTEMPT_ID = "agentlightning.attempt_id"
    SPAN_SEQUENCE_ID = "agentlightning.span_sequence_id"


class SpanAttributeNames(StrEnum):
    """What 0.2 called two attributes; `get_message_value` and `get_object_value` read those of today."""

    MESSAGE = "message"
    OBJECT = "object"


class ParallelWorkerBase:
    """The life of something that several workers run: what `Runner` and `Tracer` have themselves here."""

    def __init__(self) -> None:
        self.worker_id: int | None = None

    def init(self, *args: Any, **kwargs: Any) -> None:
        """Prepare, once."""

    def init_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        """Prepare for a worker."""
        self.worker_id = worker_id

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Do the work."""

    def teardown_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        """Undo `init_worker`."""

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        """Undo `init`."""


def generate_id(length: int) -> str:
    """Return so many random hexadecimal digits."""
    return secrets.token_hex((length + 1) // 2)[:length]


def is_queuing(rollout: Rollout) -> bool:
    """Whether it waits for a runner."""
    return rollout.status in QUEUED


def is_running(rollout: Rollout) -> bool:
    """Whether a runner has it."""
    return rollout.status in ("preparing", "running")


def is_finished(rollout: Rollout) -> bool:
    """Whether it has ended."""
    return rollout.status in ENDED


def convert_timestamp(timestamp: float | None) -> float | None:
    """Return seconds, of seconds or of nanoseconds; None for none."""
    if not timestamp:
        return None
    return timestamp / 1_000_000_000 if timestamp > 1e12 else timestamp


LaunchMode = Literal["asyncio", "thread", "mp"]


@dataclass
class PythonServerLauncherArgs:
    """How a server of 0.3 is started: `LightningStoreServer` and `LLMProxy` here take host, port and launch mode."""

    port: int | None = None
    host: str | None = None
    access_host: str | None = None
    launch_mode: LaunchMode = "asyncio"
    n_workers: int = 1
    healthcheck_url: str | None = None
    log_level: int = logging.INFO
    access_log: bool = False
    startup_timeout: float = 60.0
    kill_unhealthy_server: bool = True
    thread_join_timeout: float = 10.0
    process_join_timeout: float = 10.0
    timeout_keep_alive: int = 30


def configure_logger(level: int | str = logging.INFO, name: str = "lightning_core") -> logging.Logger:
    """Show the logs of one logger, as `setup_module_logging` does; deprecated.

    Returns:
        The logger.
    """
    warnings.warn("configure_logger is deprecated; call setup_logging", DeprecationWarning, stacklevel=2)
    return setup_module_logging(level, name=name)
