"""A GPU is looked for without torch."""

from pathlib import Path

import pytest
from lightning_verl.requirements import check_accelerator, has_accelerator

from lightning_core.errors import ConfigError


@pytest.mark.parametrize("device", ["nvidia0", "nvidiactl", "dxg", "kfd", "davinci3"])
def test_a_driver_shows_its_accelerator(tmp_path: Path, device: str) -> None:
    (tmp_path / "dev").mkdir()
    assert not has_accelerator(tmp_path)
    (tmp_path / "dev" / device).touch()
    assert has_accelerator(tmp_path)
    check_accelerator(None, is_elsewhere=False, root=tmp_path)


def test_without_one_the_processor_has_to_be_asked_for(tmp_path: Path) -> None:
    for device in (None, "cuda"):
        with pytest.raises(ConfigError, match=r"shows no GPU; .* set agentlightning\.device: cpu"):
            check_accelerator(device, is_elsewhere=False, root=tmp_path)
    check_accelerator("cpu", is_elsewhere=False, root=tmp_path)


def test_a_cluster_may_have_what_this_machine_has_not(tmp_path: Path) -> None:
    check_accelerator(None, is_elsewhere=True, root=tmp_path)
