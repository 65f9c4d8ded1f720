"""Ray, for as long as a run needs it."""

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf
from ray.exceptions import RayError, RayTaskError
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
from verl.utils.device import get_resource_name

from lightning_core.errors import AlgorithmError, ConfigError
from lightning_verl.leftovers import end_leftovers, worker_variables

_QUIET = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
"""Options of Ray, unless the config gives others. Workers' logs stand in Ray's session folder."""

_ERROR = re.compile(r"^(?:Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)|(Fatal Python error: .*))$", re.M)
"""What a log says of an error: the line behind a traceback, or Python's of a signal. Warnings name errors, too."""


@contextmanager
def ray_cluster(config: DictConfig) -> Iterator[None]:
    """Have a Ray during the block: the cluster that is named, or one of its own. One training has it at a time.

    Args:
        config: verl's; `ray_kwargs.ray_init` is for Ray. An `address` there, or the variable `RAY_ADDRESS`, names a
            cluster; more than one node means the cluster of this machine.

    Raises:
        ConfigError: When this process has a Ray already, the cluster cannot be reached, or it has too little.
    """
    if ray.is_initialized():
        raise ConfigError(
            "this process has started Ray already, for another training or something else; wait for its end or call "
            "ray.shutdown(), or start this training in another process"
        )
    end_leftovers()
    logging.getLogger("ray").setLevel(logging.ERROR)  # it warns of not being in the main thread
    try:
        ray.init(**_arguments(config))
    except (ConnectionError, RuntimeError, ValueError) as exc:
        raise ConfigError(f"Ray does not start: {exc}; see ray_kwargs.ray_init of verl's config") from exc
    try:
        _check_resources(config)
        with logs_named():
            yield
    finally:
        ray.shutdown()


@contextmanager
def logs_named() -> Iterator[None]:
    """Have an error of a worker say where its log is, and of one that died what the last error in that is.

    Ray shows neither. The log of a worker that was killed has no error, and none is quoted.

    Raises:
        AlgorithmError: In the place of Ray's own errors.
    """
    try:
        yield
    except RayError as exc:
        lines = str(exc).strip().splitlines() or [type(exc).__name__]
        # Both say everything themselves: what a worker raised, and what ended it at its start.
        is_raised = isinstance(exc, RayTaskError) or "creation task" in lines[0]
        logs = Path(ray._private.worker._global_node.get_logs_dir_path())
        log = _log_of(str(exc), logs, quotes=not is_raised)
        raise AlgorithmError(f"a worker of verl failed: {lines[-1 if is_raised else 0].strip()}; {log}") from exc


def _log_of(error: str, logs: Path, *, quotes: bool) -> str:
    """Name the log of the worker that an error names by its process id, and quote its last error."""
    for pid in re.findall(r"\bpid[=:] ?(\d+)", error):
        for path in logs.glob(f"worker-*-{pid}.err"):
            errors = [uncaught or fatal for uncaught, fatal in _ERROR.findall(path.read_text(errors="replace"))]
            return f"its log is {path}" + (f", the last error there: {errors[-1]}" if errors and quotes else "")
    return f"the logs of the workers are {logs}/worker-*.err"


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
    variables = {name: os.environ[name] for name in ("VERL_PLATFORM",) if name in os.environ}
    variables |= {"TRANSFER_QUEUE_ENABLE": "1", **worker_variables()}
    environment["env_vars"] = {**environment.get("env_vars", {}), **variables}
    quiet = _QUIET if address == "local" else {"log_to_driver": False, "logging_level": "ERROR"}
    return {**quiet, **given, "address": address, "runtime_env": environment}


def _check_resources(config: DictConfig) -> None:
    """Refuse a cluster on which verl would wait for ever."""
    name = get_resource_name()
    trainer = config.trainer
    training = trainer.nnodes * trainer.n_gpus_per_node
    units = OmegaConf.select(config, "transfer_queue.backend.SimpleStorage.num_data_storage_units", default=0)
    # verl's pools ask for three a worker; TransferQueue for one each of its actors
    needed = {name: training, "CPU": 3 * training + 1 + units}
    free, total = ray.available_resources(), ray.cluster_resources()
    for what, count in needed.items():
        if free.get(what, 0) < count:
            raise ConfigError(
                f"Ray's cluster has {free.get(what, 0):g} of {what} free, of {total.get(what, 0):g}, and the run needs "
                f"{count} (trainer.nnodes={trainer.nnodes} times trainer.n_gpus_per_node={trainer.n_gpus_per_node}); "
                "end what holds them, set ray_kwargs.ray_init, where num_cpus is a count for scheduling and may be "
                "more than there are, or train on a processor: agentlightning.device: cpu"
            )
