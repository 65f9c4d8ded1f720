"""The config that trains the model behind the agent, as far as it can be known without a GPU and the model."""

from pathlib import Path

import pytest

from lightning_core.adapter import TracerTraceToTriplet
from lightning_core.config import load_job

verl = pytest.importorskip("lightning_verl", reason="lightning-verl has an environment of its own")
verl_config = pytest.importorskip("lightning_verl.config")


def test_it_trains_the_nodes_that_write_queries_and_its_sizes_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)  # then the model would have to be there
    job = load_job(Path(__file__).with_name("rl.yaml"), dry_run=True)
    algorithm = job.trainer.algorithm
    assert isinstance(algorithm, verl.VERL)
    verl_config.check_settings(algorithm.settings, n_train=6, n_val=14, n_test=None)
    assert isinstance(job.trainer.adapter, TracerTraceToTriplet)
    assert job.trainer.adapter.agent_match == "write"
