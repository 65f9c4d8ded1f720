"""The configs, as far as they can be known without a GPU; and a training of a tiny model that is made on the spot."""

import json
from pathlib import Path

import pytest

from lightning_core.algorithm import Algorithm
from lightning_core.config import load_job

HERE = Path(__file__).parent


@pytest.fixture
def samples(tmp_path: Path) -> str:
    """A file of samples, in the place of the hub's."""
    path = tmp_path / "samples.jsonl"
    rows = [{"question": f"What is {n} and 1?", "answer": f"It is {n}+1.\n#### {n + 1}"} for n in range(4)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def algorithm_of(config: str, samples: str) -> Algorithm:
    overrides = [f"{name}_dataset={samples}" for name in ("train", "val", "test")]
    algorithm = load_job(HERE / config, overrides=overrides, dry_run=True).trainer.algorithm
    assert isinstance(algorithm, Algorithm)
    return algorithm


def test_the_config_makes_as_many_samples_as_the_figure_that_it_is_compared_with(samples: str) -> None:
    grpo = pytest.importorskip("lightning_grpo", reason="lightning-grpo has an environment of its own")
    algorithm = algorithm_of("config.yaml", samples)
    assert isinstance(algorithm, grpo.GRPO)
    told = algorithm.options
    assert told.steps * told.batch_size * told.group_size == 16_000


@pytest.mark.slow
def test_it_trains_a_tiny_model(samples: str, tmp_path: Path) -> None:
    pytest.importorskip("lightning_grpo", reason="lightning-grpo has an environment of its own")
    testing = pytest.importorskip("lightning_tokens.testing")
    model = testing.make_tiny_model(tmp_path / "model", context=2048)
    overrides = [f"{name}_dataset={samples}" for name in ("train", "val", "test")]
    overrides += [f"algorithm.model={model}", "algorithm.steps=1", "algorithm.batch_size=2", "algorithm.group_size=2"]
    overrides += ["algorithm.max_tokens=400"]
    job = load_job(HERE / "config.yaml", overrides=overrides, run_dir=tmp_path / "runs")
    result = job.fit()
    assert result.metrics["training/n_rollouts_w_reward"] == 4
    assert result.metrics["test_reward_initial"] == 0.0, "it knows nothing"


def test_the_sizes_of_verls_fit_together_and_the_data(samples: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verl = pytest.importorskip("lightning_verl", reason="lightning-verl has an environment of its own")
    verl_config = pytest.importorskip("lightning_verl.config")
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)  # then the model would have to be there
    algorithm = algorithm_of("verl.yaml", samples)
    assert isinstance(algorithm, verl.VERL)
    verl_config.check_settings(algorithm.settings, n_train=7273, n_val=200, n_test=1319)
    assert algorithm.settings.verl.actor_rollout_ref.rollout.name == "vllm"
    assert algorithm.settings.learning.level == "trajectory"
    assert algorithm.settings.verl.trainer.max_actor_ckpt_to_keep == 2, "all of them would be hundreds of gigabytes"
