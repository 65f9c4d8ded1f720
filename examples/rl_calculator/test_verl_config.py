"""The same training on verl, as far as it can be known without running it."""

from pathlib import Path

import pytest
from lightning_tokens.testing import make_tiny_model

from lightning_core.config import load_job

verl = pytest.importorskip("lightning_verl", reason="lightning-verl has an environment of its own")
verl_config = pytest.importorskip("lightning_verl.config")


def test_its_sizes_fit_together_and_the_data(tmp_path: Path) -> None:
    model = f"algorithm.config.actor_rollout_ref.model.path={make_tiny_model(tmp_path / 'model')}"
    job = load_job(Path(__file__).with_name("verl.yaml"), overrides=[model], dry_run=True)
    algorithm = job.trainer.algorithm
    assert isinstance(algorithm, verl.VERL)
    verl_config.check_settings(algorithm.settings, n_train=480, n_val=60, n_test=240)
