"""TransferQueue, for one training alone: a cluster of Ray has one for all who use it."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import ray
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from transfer_queue import interface

from lightning_core.errors import ConfigError

logger = logging.getLogger(__name__)

_END_SECONDS = 10.0


def check_queue() -> None:
    """Refuse a cluster in which somebody uses TransferQueue.

    Two trainings would take each other's rows, and the first to end would close it for both.

    Raises:
        ConfigError: When somebody does.
    """
    if _controller() is not None:
        raise _taken()


@contextmanager
def own_queue(config: DictConfig) -> Iterator[None]:
    """Have a queue during the block that this process has made.

    Of processes that begin at the same moment one makes it, and the others are refused.

    Args:
        config: verl's `transfer_queue`.

    Raises:
        ConfigError: When another process has made one.
    """
    controller = None
    try:
        # Only its creator learns where it listens; all others have joined it.
        if OmegaConf.select(tq.init(config), "controller.zmq_info") is None:
            raise _taken()
        controller = _controller()
        yield
    finally:
        if controller is None:
            interface._TQ_CONTROLLER = None  # `close` would end it for those whose it is
        tq.close()
        if controller is not None and ray.is_initialized():
            _wait_for_end(controller)


def _wait_for_end(controller: object) -> None:
    if not wait_until(lambda: _controller() != controller, timeout_seconds=_END_SECONDS):
        logger.warning("lightning_verl.queue_not_closed")


def _controller() -> object:
    """Return what is told apart of the actor that every user in the cluster finds; None where there is none."""
    try:
        return ray.get_actor("TransferQueueController", namespace="transfer_queue")._actor_id
    except ValueError:
        return None


def _taken() -> ConfigError:
    return ConfigError(
        "another training runs in this cluster of Ray (its TransferQueue is there), and each would take the rows "
        "of the other; wait for its end, or give this one a Ray of its own"
    )


_LOOK_SECONDS = 0.05


def wait_until(is_so: Callable[[], bool], *, timeout_seconds: float) -> bool:
    """Return whether it has come true in time."""
    deadline = time.monotonic() + timeout_seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True
