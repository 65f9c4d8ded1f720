"""Tested where verl is installed: it has an environment of its own."""

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

collect_ignore_glob = [] if find_spec("verl") else ["*"]

os.environ.setdefault("OMP_NUM_THREADS", "1")  # more threads only wait for each other where models are this small


@pytest.fixture(scope="session")
def shared_ray() -> Iterator[None]:
    """A Ray for all tests of a process."""
    import ray

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def shared_queue(shared_ray: None) -> Iterator[None]:
    from lightning_verl.verl_internals.queue import own_queue
    from omegaconf import OmegaConf

    with own_queue(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}})):
        yield


@pytest.fixture
def queue(shared_queue: None) -> None:
    """A TransferQueue in it, without rows."""
    import transfer_queue as tq

    for partition, rows in (tq.kv_list() or {}).items():
        if rows:
            tq.kv_clear(keys=list(rows), partition_id=partition)


sys.path.append(str(Path(__file__).parents[2] / "lightning-tokens" / "tests" / "learning"))  # its toys
