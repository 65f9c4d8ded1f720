"""A GPU is looked for without torch."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from lightning_verl.algorithm import check_engine
from lightning_verl.config import count_gpus, load_settings

from lightning_core.errors import ConfigError


def test_the_gpus_that_are_there_are_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    assert count_gpus(tmp_path) == 3
    for visible, count in (("0,1", 2), ("GPU-1f", 1), ("", 0), ("-1", 0)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert count_gpus(tmp_path) == count


def test_a_config_that_says_no_number_of_gpus_means_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    assert load_settings().verl.trainer.n_gpus_per_node == 3
    assert load_settings({"trainer.n_gpus_per_node": 2}).verl.trainer.n_gpus_per_node == 2
    assert load_settings({"agentlightning.device": "cpu"}).verl.trainer.n_gpus_per_node == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert load_settings().verl.trainer.n_gpus_per_node == 8, "verl's, for a cluster elsewhere"


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_an_engine_that_is_not_installed_is_told_before_ray_starts() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.name is 'vllm', which is not installed; .*device: cpu\. For GPUs"):
        check_engine("vllm")
