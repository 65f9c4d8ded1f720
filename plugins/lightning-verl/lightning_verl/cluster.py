"""Ray, for as long as a run needs it."""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
from verl.utils.device import get_resource_name

from lightning_core.errors import ConfigError

_QUIET = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
"""What is told to Ray unless the config says otherwise. Workers' logs stand in Ray's session folder."""


@contextmanager
def ray_cluster(config: DictConfig) -> Iterator[None]:
    """Have Ray during the block: that which runs in this process, the cluster that is named, or one of its own.

    Args:
        config: verl's; `ray_kwargs.ray_init` is for Ray. An `address` there, or the variable `RAY_ADDRESS`, names a
            cluster; more than one node means the cluster of this machine.

    Raises:
        ConfigError: When the cluster cannot be reached, or has too little.
    """
    if ray.is_initialized():
        _check_environment()
        _check_resources(config)
        yield
        return
    logging.getLogger("ray").setLevel(logging.ERROR)  # it warns of not being in the main thread before it is told to
    try:
        ray.init(**_arguments(config))
    except (ConnectionError, ValueError) as exc:
        raise ConfigError(f"Ray does not start: {exc}; see ray_kwargs.ray_init of verl's config") from exc
    try:
        _check_resources(config)
        yield
    finally:
        ray.shutdown()


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
    environment["env_vars"] = {**environment.get("env_vars", {}), **_variables()}
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
    needed = config.trainer.nnodes * config.trainer.n_gpus_per_node
    total = ray.cluster_resources()
    has = total.get(name, 0)
    if has < needed:
        pretended = "; start it with --num-gpus, a worker takes one also on a processor" * (_device(config) == "cpu")
        raise ConfigError(
            f"Ray's cluster has {has:g} of {name}, the run needs {needed} (trainer.nnodes={config.trainer.nnodes} "
            f"times trainer.n_gpus_per_node={config.trainer.n_gpus_per_node}){pretended}"
        )
    cpus = 3 * needed  # verl's pools ask for three a worker
    if total.get("CPU", 0) < cpus:
        raise ConfigError(
            f"Ray's cluster has {total.get('CPU', 0):g} of CPU, verl asks for {cpus}; set "
            "ray_kwargs.ray_init.num_cpus, which is a count for scheduling and may be more than there are"
        )


def _device(config: DictConfig) -> str:
    return str(config.trainer.get("device", ""))
