"""What Ray has to have."""

import warnings

import pytest
from lightning_verl.config import load_settings

from lightning_core.errors import ConfigError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of verl
    from lightning_verl import cluster

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
