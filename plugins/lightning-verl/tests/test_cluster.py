"""What Ray has to have, and what is told of its workers' errors."""

import os
import re
import signal
import traceback
import warnings
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
            "actor_rollout_ref.rollout": {"nnodes": 2, "n_gpus_per_node": 1, "checkpoint_engine.backend": "mooncake"},
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


ON_CPU = {"env_vars": {"VERL_PLATFORM": "cpu"}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "says", "quotes"),
    [
        ("raised", "ValueError: no such layer; ", None),
        (
            "died of an error",
            "The actor died unexpectedly before finishing this task.; ",
            "RuntimeError: CUDA out of memory",
        ),
        (
            "crashed",
            "The actor died unexpectedly before finishing this task.; ",
            "Fatal Python error: Segmentation fault",
        ),
        ("was killed", "The actor died unexpectedly before finishing this task.; ", None),
    ],
)
def test_a_worker_of_verl_that_fails_names_its_log_and_one_that_dies_is_quoted(
    how: str, says: str, quotes: str | None, shared_ray: None
) -> None:
    class Worker:
        def fail(self, how: str) -> None:
            import verl.workers.engine  # warns of each engine that is not installed
            import verl.workers.engine_workers  # noqa: F401

            if how == "raised":
                raise ValueError("no such layer")
            if how == "was killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "crashed":
                os.kill(os.getpid(), signal.SIGSEGV)
            try:
                raise RuntimeError("CUDA out of memory")
            except RuntimeError:
                traceback.print_exc()
                os._exit(1)

    with pytest.raises(AlgorithmError) as caught, logs_named():
        ray.get(ray.remote(Worker).options(runtime_env=ON_CPU).remote().fail.remote(how))
    said = str(caught.value)
    path = re.search(r"its log is ([^,\s]+)", said)
    assert path is not None, said
    assert "engine is not available" in Path(path[1]).read_text(), "what verl warns of at its import"
    assert said.startswith(f"a worker of verl failed: {says}")
    assert said.endswith(f"the last error there: {quotes}" if quotes else path[1])
