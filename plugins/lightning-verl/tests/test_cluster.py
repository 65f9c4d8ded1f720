"""What Ray has to have, and what is told of its workers' errors."""

import os
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import ray
from lightning_verl.config import load_settings

from lightning_core.errors import AlgorithmError, ConfigError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of verl
    from lightning_verl import cluster
    from lightning_verl.cluster import logs_named

pytestmark = pytest.mark.filterwarnings(  # of verl
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)


@pytest.mark.parametrize(
    ("mode", "has", "missing"),
    [
        ("sync", {"GPU": 1, "CPU": 12}, None),
        ("sync", {"GPU": 1, "CPU": 11}, "has 11 of CPU free, of 11, and the run needs 12 (trainer.nnodes=1 times"),
        ("separate_async", {"GPU": 3, "CPU": 16}, None),
        ("separate_async", {"GPU": 3, "CPU": 15}, "has 15 of CPU free, of 15, and the run needs 16 ("),
        ("separate_async", {"GPU": 2, "CPU": 16}, "has 2 of GPU free, of 2, and the run needs 3 ("),
    ],
)
def test_generation_with_devices_of_its_own_is_counted(
    mode: str, has: dict[str, float], missing: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_settings(
        {
            "trainer": {"n_gpus_per_node": 1, "v1.trainer_mode": mode},
            "actor_rollout_ref.rollout": {"nnodes": 2, "n_gpus_per_node": 1},
        }
    ).verl
    monkeypatch.setattr(cluster, "get_resource_name", lambda: "GPU")
    for name in ("cluster_resources", "available_resources"):
        monkeypatch.setattr(cluster.ray, name, lambda: has)
    if missing is None:
        cluster._check_resources(config)
        return
    with pytest.raises(ConfigError) as caught:
        cluster._check_resources(config)
    assert missing in str(caught.value)
    named = "for separate_async actor_rollout_ref.rollout.nnodes=2 times actor_rollout_ref.rollout.n_gpus_per_node=1)"
    assert (named in str(caught.value)) is (mode == "separate_async")


@pytest.mark.slow
def test_an_error_of_a_worker_names_its_log_and_quotes_its_last_error(shared_ray: None) -> None:
    def fail() -> None:
        raise ValueError("no such layer")

    def die() -> None:
        print("RuntimeError: CUDA out of memory", file=sys.stderr, flush=True)
        os._exit(1)

    said = []
    for function in (fail, die):
        with pytest.raises(AlgorithmError) as caught, logs_named():
            ray.get(ray.remote(Worker).remote().run.remote(function))
        said.append(str(caught.value))
        path = re.search(r"its log is ([^,\s]+)", said[-1])
        assert path is not None, said[-1]
        assert Path(path[1]).is_file()
    assert said[0].startswith("a worker of verl failed: ValueError: no such layer; its log is /")
    assert said[1].endswith("the last error there: RuntimeError: CUDA out of memory")


class Worker:
    def run(self, function: Callable[[], None]) -> None:
        function()
