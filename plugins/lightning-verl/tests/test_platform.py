"""verl finds the processor, and what runs on it, in a process where that is asked for: verl chooses once in each."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(300)

PROBE = """
import json
import torch
import lightning_verl.workers
from verl.utils import device
from verl.workers.engine import EngineRegistry
from verl.workers.rollout.base import get_rollout_class
from verl.workers.rollout.replica import get_rollout_replica_class

module = device.get_torch_device()
print(json.dumps({
    "device": device.get_device_name(),
    "id": str(device.get_device_id()),
    "backend": device.get_nccl_backend(),
    "resource": device.get_resource_name(),
    "is_available": module.is_available(),
    "memory": 0 < module.memory_allocated() <= 1.1 * module.max_memory_allocated(),
    "delegates": module.Stream is torch.cpu.Stream,
    "engine": EngineRegistry.get_engine_cls("language_model", "fsdp2").__name__,
    "critic": EngineRegistry.get_engine_cls("value_model", "fsdp2").__name__,
    "sender": get_rollout_class("hf").__name__,
    "replica": get_rollout_replica_class("hf").__name__,
}))
"""


@pytest.mark.skipif("VERL_PLATFORM" in os.environ, reason="a platform is asked for")
@pytest.mark.filterwarnings("ignore")  # those of verl and of what it imports
def test_verl_loads_the_platform_and_never_picks_it_by_itself() -> None:
    from verl.plugin.platform import PlatformRegistry
    from verl.utils.device import get_device_name

    assert "cpu" in PlatformRegistry.registered_names()
    assert get_device_name() != "cpu"


@pytest.mark.slow
def test_asked_for_it_has_what_verl_looks_for() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROBE],
        env={**os.environ, "VERL_PLATFORM": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(ran.stdout.splitlines()[-1]) == {
        "device": "cpu",
        "id": "cpu",
        "backend": "gloo",
        "resource": "GPU",
        "is_available": False,
        "memory": True,
        "delegates": True,
        "engine": "CpuLanguageModelEngine",
        "critic": "FSDPEngineWithValueHead",
        "sender": "WeightSender",
        "replica": "HFReplica",
    }
