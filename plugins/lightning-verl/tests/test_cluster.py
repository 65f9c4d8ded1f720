"""A Ray that runs already is left as it was, or refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from lightning_verl import cluster
from lightning_verl.config import load_settings
from lightning_verl.testing import make_tiny_model
from omegaconf import DictConfig

from lightning_core.errors import ConfigError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),  # of verl
]


def test_a_ray_that_runs_already_is_left_as_it_was_or_refused(tmp_path: Path) -> None:
    """What `twice.py` prints: two trainings, the first of which fails, and two that lack something."""
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("twice.py")), str(make_tiny_model(tmp_path / "model"))],
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stderr[-5000:]

    def printed(what: str) -> list[str]:
        return [line.removeprefix(f"{what} ") for line in ran.stdout.splitlines() if line.startswith(f"{what} ")]

    failed, succeeded = printed("ENDED")
    assert "succeeded" in succeeded
    assert "NoRewards: step 1: none of 4 rollouts gave a reward; the first: RuntimeError: the agent broke" in failed
    left = [json.loads(each) for each in printed("LEFT")]
    assert left == [[["REMOVED"], {"GPU": 1.0, "CPU": 6.0}, ["Kept"], 7]] * 2
    small, held = printed("REFUSED")
    assert (
        "Ray's cluster has 1 of GPU, the run needs 2 (trainer.nnodes=1 times trainer.n_gpus_per_node=2); start it "
        "with --num-gpus" in small
    )
    assert "has 4 of CPU free, of 6, and the run needs 5; end what holds them" in held


def test_a_process_has_one_training_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_RELEASE_SECONDS", 0.01)
    refused = pytest.raises(ConfigError, match="another training runs in this process")
    with cluster._alone(), refused, cluster.ray_cluster(DictConfig({})):
        pass


@pytest.mark.parametrize(
    ("mode", "has", "missing"),
    [
        ("sync", {"GPU": 1, "CPU": 12}, None),
        ("sync", {"GPU": 1, "CPU": 11}, "has 11 of CPU, verl asks for 12 (trainer.nnodes=1 times trainer.n_gpus_per"),
        ("separate_async", {"GPU": 3, "CPU": 16}, None),
        ("separate_async", {"GPU": 3, "CPU": 15}, "has 15 of CPU, verl asks for 16 ("),
        ("separate_async", {"GPU": 2, "CPU": 16}, "has 2 of GPU, the run needs 3 ("),
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
