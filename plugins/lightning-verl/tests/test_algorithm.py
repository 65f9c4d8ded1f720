"""The algorithm refuses what cannot work, before torch, Ray or verl is imported."""

import asyncio
import json
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from lightning_proxy import RemoteProxy
from lightning_verl import PPO, VERL, config as settings
from lightning_verl.algorithm import work_of
from lightning_verl.config import load_settings
from lightning_verl.training import Training
from toy_policy import policy

from lightning_core.errors import AlgorithmError, ConfigError
from lightning_core.registry import default_registry
from lightning_core.store import InMemoryLightningStore

PROBE = """
import json, sys
from lightning_core import Trainer, rollout
from lightning_verl import VERL

@rollout
def agent(task, llm):
    return 0.0

try:
    Trainer(algorithm=VERL(json.loads(sys.argv[1]), preset="grpo")).fit(agent, list(range(8)))
except Exception as exc:
    heavy = [name for name in ("torch", "ray", "verl", "transformers") if name in sys.modules]
    print(json.dumps([type(exc).__name__, str(exc), heavy]))
    raise
"""


def refusal(config: dict[str, object]) -> str:
    """Return the one error that a training is refused with, before anything is started that could be left."""
    command = [sys.executable, "-c", PROBE, json.dumps(config)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1
    kind, message, heavy = json.loads(ran.stdout.splitlines()[-1])
    assert message.splitlines()[-1] in ran.stderr.splitlines()[-1]
    assert kind == "ConfigError"
    assert heavy == []
    return str(message)


def work(*config: str) -> dict[str, object]:
    return work_of(load_settings(config, preset="grpo"), n_train=8, n_val=0)


def test_a_training_is_gone_on_with_by_the_same_config() -> None:
    assert work() == work()
    assert work() != work("actor_rollout_ref.rollout.n=8")
    assert work() != work("agentlightning.on_failure=0")
    same = ("algorithm.adv_estimator=grpo", "agentlightning.trace_aggregator.level=trajectory")
    assert work(*same) != work_of(load_settings(same), n_train=8, n_val=0), "the preset has another size of a group"


def test_a_training_is_gone_on_with_on_a_machine_that_has_other_gpus_or_libraries(monkeypatch) -> None:
    monkeypatch.setattr("lightning_verl.config.count_gpus", lambda: 1)
    one = work()
    monkeypatch.setattr("lightning_verl.config.count_gpus", lambda: 2)
    assert work() == one
    assert work("trainer.n_gpus_per_node=1") != work("trainer.n_gpus_per_node=2"), "what the user says"
    has = settings.find_spec
    monkeypatch.setattr(settings, "find_spec", lambda name: has("os" if name == "flash_attn" else name))
    assert work() == one


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    return str(tmp_path)


def config(model: str, **more: object) -> dict[str, object]:
    return {
        "agentlightning": {"device": "cpu"},
        "actor_rollout_ref": {"model": {"path": model}, "actor": {"ppo_mini_batch_size": 4}},
        "data": {"train_batch_size": 4},
        **more,
    }


def test_a_preset_sets_what_belongs_to_it() -> None:
    registry = default_registry()
    for preset in ("grpo", "ppo", "rloo"):
        spec = {"name": "verl", "preset": preset, "config": config("/m")}
        found = registry.build("algorithms", spec, expected=VERL)
        assert preset != "ppo" or PPO(config("/m")).settings.learning == found.settings.learning
        wanted = {"ppo": "gae"}.get(preset, preset)
        assert found.settings.verl.algorithm.adv_estimator == wanted
        assert found.settings.learning.level == "trajectory"
    plain = registry.build("algorithms", {"name": "verl", "config": config("/m")}, expected=VERL)
    assert plain.settings.learning.level == "transition", "as in agentlightning 0.3"
    with pytest.raises(ConfigError, match="preset is 'grpo', and PPO is 'ppo'"):
        PPO(config("/m"), preset="grpo")


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_a_gpu_the_processor_has_to_be_asked_for(model: str) -> None:
    message = refusal({**config(model), "agentlightning": {}})
    assert "which is not installed; to train on this machine's processor, set agentlightning.device: cpu" in message
    assert "\n" not in message


NO_MANAGER = {"daemon_cls": "lightning_verl:VERL"}


@pytest.mark.parametrize(
    ("tasks", "options", "proxy", "message"),
    [
        (3, {}, None, "less than one batch"),
        (8, {}, RemoteProxy("http://127.0.0.1:1"), "runs by itself and cannot be given the model that is trained; l"),
        (8, NO_MANAGER, None, r"it has to be a subclass of lightning_verl\.RolloutManager"),
    ],
)
def test_what_a_training_cannot_work_with_is_refused(
    model: str, tasks: int, options: dict[str, Any], proxy: RemoteProxy | None, message: str
) -> None:
    algorithm = VERL(config(model), **options)
    algorithm.set_store(InMemoryLightningStore())
    if proxy is not None:
        algorithm.set_llm_proxy(proxy)
    with pytest.raises(ConfigError, match=message):
        asyncio.run(algorithm.run([1] * tasks))


def test_the_docs_show_the_classes_that_a_training_is_tested_with() -> None:
    """The training is "adapters" of `e2e/test_trainings.py`."""
    here = Path(__file__).parent
    page = (here.parents[2] / "docs" / "verl.md").read_text().replace("import VERL, ", "import ")
    assert (here / "e2e" / "own_classes.py").read_text().strip() in page


class Begun(Training):
    """Serves the model and says what it begins with, and ends there as it is to."""

    ends_with: BaseException | None = None

    async def run(self) -> None:
        await self.serving.start(policy())
        await self.begin(0)
        if self.ends_with is not None:
            raise self.ends_with


UNSAVED = "trainer.save_freq=-1"


@pytest.mark.parametrize(
    ("ends_with", "config", "next_config", "versions"),
    [
        pytest.param(OSError("the disk is full"), (), (), 1, id="failed"),
        pytest.param(asyncio.CancelledError(), (), (), 1, id="killed"),
        pytest.param(None, (), (), 2, id="succeeded"),
        pytest.param(OSError("the disk is full"), (), ("actor_rollout_ref.rollout.n=8",), 2, id="other work"),
        pytest.param(OSError("the disk is full"), (UNSAVED,), (UNSAVED,), 1, id="no checkpoints"),
        pytest.param(AlgorithmError("no reward"), (UNSAVED,), (UNSAVED,), 2, id="nothing to go on with"),
    ],
)
async def test_who_can_go_on_from_a_checkpoint_has_the_resources_that_were_measured_before_it(
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    ends_with: BaseException | None,
    config: tuple[str, ...],
    next_config: tuple[str, ...],
    versions: int,
) -> None:
    monkeypatch.setattr("lightning_verl.algorithm.Training", Begun)
    store = InMemoryLightningStore()

    async def run(*overrides: str) -> VERL:
        options = ("agentlightning.device=cpu", "data.train_batch_size=4")
        options += ("actor_rollout_ref.rollout.name=vllm", "ray_kwargs.ray_init.address=auto")
        algorithm = VERL([*options, f"actor_rollout_ref.model.path={model}", *overrides], preset="grpo")
        algorithm.set_store(store)
        await algorithm.run([1] * 8)
        return algorithm

    monkeypatch.setattr(Begun, "ends_with", ends_with)
    with suppress(OSError, AlgorithmError, asyncio.CancelledError):
        await run(*config)
    monkeypatch.setattr(Begun, "ends_with", None)
    algorithm = await run(*next_config)
    found = await store.query_resources()
    assert len(found) == versions
    assert found[-1].resources == algorithm.get_initial_resources(), "they are found where the proxy is now"
