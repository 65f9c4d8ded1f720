"""verl finds the processor, and what runs on it. In processes of their own: verl chooses once in each."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(300)

PROBE = """
import json, sys
from verl.utils import device
from verl.plugin.platform import PlatformRegistry

found = {"names": list(PlatformRegistry.registered_names()), "device": device.get_device_name()}
if sys.argv[1:]:
    import torch
    import lightning_verl.cpu.workers
    from verl.workers.engine import EngineRegistry
    from verl.workers.rollout.base import get_rollout_class
    from verl.workers.rollout.replica import get_rollout_replica_class

    module = device.get_torch_device()
    found |= {
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
    }
print(json.dumps(found))
"""


def probe(*arguments: str, **environment: str) -> dict[str, object]:
    ran = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments],
        env={name: value for name, value in os.environ.items() if name != "VERL_PLATFORM"} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, object] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_verl_loads_the_platform_and_never_picks_it_by_itself() -> None:
    found = probe()
    assert "cpu" in found["names"]  # type: ignore[operator]
    assert found["device"] != "cpu"


@pytest.mark.slow
def test_asked_for_it_has_what_verl_looks_for() -> None:
    found = probe("all", VERL_PLATFORM="cpu")
    del found["names"]
    assert found == {
        "device": "cpu",
        "id": "cpu",
        "backend": "gloo",
        "resource": "GPU",
        "is_available": False,
        "memory": True,
        "delegates": True,
        "engine": "CpuLanguageModelEngine",
        "critic": "CpuValueModelEngine",
        "sender": "WeightSender",
        "replica": "HFReplica",
    }
