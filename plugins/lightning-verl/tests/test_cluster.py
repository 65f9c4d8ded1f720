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
    ("has", "missing"),
    [
        ({"GPU": 2, "CPU": 15}, None),
        ({"GPU": 2, "CPU": 14}, "has 14 of CPU free, of 14, and the run needs 15 (trainer.nnodes=1 times trainer.n_gp"),
        ({"GPU": 1, "CPU": 15}, "has 1 of GPU free, of 1, and the run needs 2 ("),
    ],
)
def test_a_cluster_that_has_too_little_is_refused(
    has: dict[str, float], missing: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_settings({"trainer.n_gpus_per_node": 2}).verl
    monkeypatch.setattr(cluster, "get_resource_name", lambda: "GPU")
    for name in ("cluster_resources", "available_resources"):
        monkeypatch.setattr(cluster.ray, name, lambda: has)
    if missing is None:
        cluster._check_resources(config)
        return
    with pytest.raises(ConfigError) as caught:
        cluster._check_resources(config)
    assert missing in str(caught.value)
