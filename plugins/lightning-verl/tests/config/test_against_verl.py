"""That verl takes what we make; slow, because verl and torch are imported."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from omegaconf import OmegaConf
from lightning_verl.config import load_settings

preset, model, *more = sys.argv[1:]
settings = load_settings([f"actor_rollout_ref.model.path={model}", *more], preset=preset)
config = settings.verl

from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config

OmegaConf.set_struct(config, False)
OmegaConf.resolve(config)
validate_config(config, need_reference_policy(config), need_critic(config))
for section in ("actor_rollout_ref.actor", "actor_rollout_ref.rollout", "algorithm"):
    made = omega_conf_to_dataclass(OmegaConf.select(config, section))
    print("made", type(made).__name__)
print("critic", need_critic(config), "reference", need_reference_policy(config))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "more", "needs"),
    [
        ("grpo", ["actor_rollout_ref.actor.use_kl_loss=true"], "critic False reference True"),
        ("ppo", ["agentlightning.device=cpu"], "critic True reference False"),
        ("rloo", ["agentlightning.device=cpu", "actor_rollout_ref.model.lora_rank=8"], "critic False reference False"),
    ],
)
def test_verl_takes_what_we_make(preset, more, needs, model):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, preset, str(model), *more], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = [line for line in done.stdout.splitlines() if line.startswith(("made", "critic"))]
    assert told == ["made FSDPActorConfig", "made RolloutConfig", "made AlgoConfig", needs]
