"""The config, as far as it can be known without a GPU and without the model."""

import json
from pathlib import Path

import pytest

from lightning_core.config import load_job

verl = pytest.importorskip("lightning_verl", reason="lightning-verl has an environment of its own")
verl_config = pytest.importorskip("lightning_verl.config")

CONFIG = Path(__file__).with_name("config.yaml")


@pytest.fixture
def samples(tmp_path: Path) -> str:
    """A file of samples, in the place of the hub's."""
    path = tmp_path / "samples.jsonl"
    path.write_text(json.dumps({"question": "What is 6 times 7?", "answer": "It is 6*7.\n#### 42"}) + "\n")
    return str(path)


def test_it_is_a_job_whose_options_all_exist(samples: str) -> None:
    overrides = [f"{name}_dataset={samples}" for name in ("train", "val", "test")]
    job = load_job(CONFIG, overrides=overrides, dry_run=True)
    assert isinstance(job.trainer.algorithm, verl.GRPO)
    assert job.trainer.n_runners == 128


def test_its_sizes_fit_together_and_the_data(samples: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)  # then the model would have to be there
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    overrides = [f"{name}_dataset={samples}" for name in ("train", "val", "test")]
    algorithm = load_job(CONFIG, overrides=overrides, dry_run=True).trainer.algorithm
    assert isinstance(algorithm, verl.GRPO)
    verl_config.check_settings(algorithm.settings, n_train=7273, n_val=200, n_test=1319)
    assert algorithm.settings.verl.actor_rollout_ref.rollout.name == "vllm"
    assert algorithm.settings.learning.level == "trajectory"
    assert algorithm.settings.verl.trainer.max_actor_ckpt_to_keep == 2, "all of them would be hundreds of gigabytes"
