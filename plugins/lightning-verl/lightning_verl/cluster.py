"""Ray, for as long as a run needs it."""

import gc
import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf
from ray.exceptions import RayError, RayTaskError
from ray.util import list_named_actors, placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
from verl.utils.device import get_resource_name

from lightning_core.errors import AlgorithmError, ConfigError
from lightning_verl.hf import NAME
from lightning_verl.leftovers import check_gpu_memory, end_leftovers, worker_variables
from lightning_verl.verl_internals import check_queue, wait_until

logger = logging.getLogger(__name__)

_QUIET = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
"""Options of Ray, unless the config gives others. Workers' logs stand in Ray's session folder."""

_POOL = "verl_group_"
"""What the names of verl's placement groups have in them."""

_ERROR = re.compile(r"\b\w*(Error|Exception)\b|\bfatal\b", re.IGNORECASE)
"""A line of a log that says what went wrong."""

_IN_PROCESS = threading.Lock()
_RELEASE_SECONDS = 10.0
_SETTLE_SECONDS = 3.0


@contextmanager
def ray_cluster(config: DictConfig) -> Iterator[None]:
    """Have Ray during the block: that which runs in this process, the cluster that is named, or one of its own.

    Args:
        config: verl's; `ray_kwargs.ray_init` is for Ray. An `address` there, or the variable `RAY_ADDRESS`, names a
            cluster; more than one node means the cluster of this machine.

    Raises:
        ConfigError: When the cluster cannot be reached, or has too little.
    """
    with _alone():
        end_leftovers()
        if ray.is_initialized():
            _check_environment()
            _check_resources(config)
            check_queue()
            with _released(servers=f"{config.actor_rollout_ref.rollout.name}_server_"), logs_named():
                yield
            return
        logging.getLogger("ray").setLevel(logging.ERROR)  # it warns of not being in the main thread
        arguments = _arguments(config)
        rollout = config.actor_rollout_ref.rollout
        if arguments["address"] == "local" and _device(config) != "cpu" and rollout.name != NAME:
            check_gpu_memory(rollout.gpu_memory_utilization, n_gpus=config.trainer.n_gpus_per_node)
        try:
            ray.init(**arguments)
        except (ConnectionError, ValueError) as exc:
            raise ConfigError(f"Ray does not start: {exc}; see ray_kwargs.ray_init of verl's config") from exc
        try:
            _check_resources(config)
            check_queue()
            with logs_named():
                yield
        finally:
            ray.shutdown()


@contextmanager
def logs_named() -> Iterator[None]:
    """Have an error of a worker say where its log is, and what the last error in that is: Ray shows neither.

    Raises:
        AlgorithmError: In the place of Ray's own errors.
    """
    try:
        yield
    except RayError as exc:
        said = str(exc).strip().splitlines() or [type(exc).__name__]
        what = said[-1] if isinstance(exc, RayTaskError) else said[0]
        logs = Path(ray._private.worker._global_node.get_logs_dir_path())
        raise AlgorithmError(f"a worker of verl failed: {what.strip()}; {_log_of(str(exc), logs)}") from exc


def _log_of(error: str, logs: Path) -> str:
    """Name the log of the worker that an error names by its process id, and quote its last error."""
    for pid in re.findall(r"\bpid[=:] ?(\d+)", error):
        for path in logs.glob(f"worker-*-{pid}.err"):
            found = [line.strip() for line in path.read_text(errors="replace").splitlines() if _ERROR.search(line)]
            return f"its log is {path}" + (f", the last error there: {found[-1]}" if found else "")
    return f"the logs of the workers are {logs}/worker-*.err"


@contextmanager
def _alone() -> Iterator[None]:
    """Have the process without another training during the block: Ray and TransferQueue know one for each."""
    if not _IN_PROCESS.acquire(timeout=_RELEASE_SECONDS):  # one that was interrupted just now ends in a moment
        raise ConfigError("another training runs in this process; wait for its end, or start this one in another")
    try:
        yield
    finally:
        _IN_PROCESS.release()


@contextmanager
def _released(servers: str) -> Iterator[None]:
    """Give back at the end of the block what verl took in it: this Ray goes on.

    Args:
        servers: What the names of verl's rollout servers begin with.
    """
    before = _groups()
    try:
        yield
    finally:
        if ray.is_initialized():
            gc.collect()  # an actor without references ends with its last handle, which may be in a cycle
            for name in list_named_actors():
                if name.startswith(servers):
                    _kill_own(name)  # or this process takes the name for taken
            groups = _groups() - before
            for key in groups:
                remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(key))))
            if not wait_until(partial(_is_released, groups), timeout_seconds=_RELEASE_SECONDS):
                logger.warning("lightning_verl.ray_not_released has=%s", ray.available_resources())


def _kill_own(name: str) -> None:
    with suppress(ValueError):  # it has ended just now
        actor = ray.get_actor(name)
        if actor._actor_id.hex().endswith(_job()):
            ray.kill(actor)


def _is_released(groups: Set[str]) -> bool:
    """Whether no node keeps anything for these placement groups."""
    return not any(key in name for name in ray.cluster_resources() for key in groups)


def _groups() -> set[str]:
    """Return verl's placement groups that this process has made, by their ids."""
    return {
        key
        for key, group in placement_group_table().items()
        if key.endswith(_job()) and _POOL in group["name"] and group["state"] != "REMOVED"
    }


def _job() -> str:
    """Return what the ids of all that this process has made in Ray end with."""
    return str(ray.get_runtime_context().get_job_id())


def _free(name: str) -> float:
    return float(ray.available_resources().get(name, 0))


def _has_free(name: str, count: float) -> bool:
    return _free(name) >= count


def _arguments(config: DictConfig) -> dict[str, Any]:
    asked: Mapping[str, Any] = OmegaConf.to_container(config.ray_kwargs.get("ray_init", {}), resolve=True)
    given = {name: value for name, value in asked.items() if value is not None}
    default = "auto" if config.trainer.nnodes > 1 else "local"
    address = given.get("address") or os.environ.get("RAY_ADDRESS") or default
    if address != "local":
        for name in ("num_cpus", "num_gpus", "resources", "object_store_memory", "include_dashboard"):
            given.pop(name, None)
    environment = get_ppo_ray_runtime_env(config)
    environment = OmegaConf.to_container(OmegaConf.merge(environment, given.pop("runtime_env", {})))
    environment["env_vars"] = {**environment.get("env_vars", {}), **_variables(), **worker_variables()}
    quiet = _QUIET if address == "local" else {"log_to_driver": False, "logging_level": "ERROR"}
    return {**quiet, **given, "address": address, "runtime_env": environment}


def _variables() -> dict[str, str]:
    """Return what every worker needs in its environment."""
    return {
        **{name: os.environ[name] for name in ("VERL_PLATFORM",) if name in os.environ},
        "TRANSFER_QUEUE_ENABLE": "1",
    }


def _check_environment() -> None:
    """Refuse a Ray that this process has started for something else: its workers would not know their platform."""
    has = ray.get_runtime_context().runtime_env.get("env_vars", {})
    missing = {name: value for name, value in _variables().items() if has.get(name) != value}
    if missing:
        raise ConfigError(
            "this process has started Ray already, whose workers lack what verl needs; call ray.shutdown() before the "
            f"run, or start it with runtime_env={{'env_vars': {missing}}}"
        )


def _check_resources(config: DictConfig) -> None:
    """Refuse a cluster on which verl would wait for ever."""
    name = get_resource_name()
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    training, generating = trainer.nnodes * trainer.n_gpus_per_node, 0
    asked = f"trainer.nnodes={trainer.nnodes} times trainer.n_gpus_per_node={trainer.n_gpus_per_node}"
    if trainer.v1.trainer_mode == "separate_async":
        generating = rollout.nnodes * rollout.n_gpus_per_node
        asked += (
            f", and for separate_async actor_rollout_ref.rollout.nnodes={rollout.nnodes} times "
            f"actor_rollout_ref.rollout.n_gpus_per_node={rollout.n_gpus_per_node}"
        )
    needed = training + generating
    total = ray.cluster_resources()
    has = total.get(name, 0)
    if has < needed:
        pretended = "; start it with --num-gpus, a worker takes one also on a processor" * (_device(config) == "cpu")
        raise ConfigError(f"Ray's cluster has {has:g} of {name}, the run needs {needed} ({asked}){pretended}")
    units = OmegaConf.select(config, "transfer_queue.backend.SimpleStorage.num_data_storage_units", default=0)
    # verl's pools ask for three a worker, and two where it only generates; TransferQueue for one each of its actors
    cpus = 3 * training + 2 * generating + 1 + units
    if total.get("CPU", 0) < cpus:
        raise ConfigError(
            f"Ray's cluster has {total.get('CPU', 0):g} of CPU, verl asks for {cpus} ({asked}); set "
            "ray_kwargs.ray_init.num_cpus, which is a count for scheduling and may be more than there are"
        )
    for what, count in ((name, needed), ("CPU", cpus)):
        if not wait_until(partial(_has_free, what, count), timeout_seconds=_SETTLE_SECONDS):
            raise ConfigError(
                f"Ray's cluster has {_free(what):g} of {what} free, of {total.get(what, 0):g}, and the run needs "
                f"{count}; end what holds them, or give the run a Ray of its own"
            )


def _device(config: DictConfig) -> str:
    return str(config.trainer.get("device", ""))
