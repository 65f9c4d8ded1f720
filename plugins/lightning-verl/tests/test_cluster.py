"""A Ray that runs already is left as it was."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from lightning_verl.testing import make_tiny_model


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_ray_serves_one_training_after_another_and_keeps_nothing_of_them(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    script = Path(__file__).with_name("twice.py")
    ran = subprocess.run(
        [sys.executable, str(script), str(model)],
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stderr[-5000:]
    left = [json.loads(line.removeprefix("LEFT ")) for line in ran.stdout.splitlines() if line.startswith("LEFT ")]
    assert left == [["succeeded", ["REMOVED"], {"GPU": 1.0, "CPU": 6.0}, ["Kept"], 7]] * 2
    (held,) = [line for line in ran.stdout.splitlines() if line.startswith("HELD ")]
    assert "has 4 of CPU free, of 6, and the run needs 5; end what holds them" in held
