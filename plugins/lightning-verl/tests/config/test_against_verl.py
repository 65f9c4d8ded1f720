"""That verl takes what we make; slow, because verl and torch are imported."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json
import sys
from omegaconf import OmegaConf
from lightning_verl.config import load_settings
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass
from lightning_core.errors import ConfigError
from lightning_verl.verl_internals.trainer import check_with_verl

model, cases = sys.argv[1:]
for preset, more in json.loads(cases):
    config = load_settings([f"actor_rollout_ref.model.path={model}", *more], preset=preset).verl
    OmegaConf.set_struct(config, False)
    OmegaConf.resolve(config)
    try:
        check_with_verl(config)
    except ConfigError as exc:
        print("refused", str(exc).splitlines()[0])
        continue
    for section in ("actor_rollout_ref.actor", "actor_rollout_ref.rollout", "algorithm"):
        made = omega_conf_to_dataclass(OmegaConf.select(config, section))
        print("made", type(made).__name__)
    print("critic", need_critic(config), "reference", need_reference_policy(config))
"""

CASES = [
    ("grpo", ["actor_rollout_ref.actor.use_kl_loss=true"]),
    ("ppo", ["agentlightning.device=cpu"]),
    ("rloo", ["agentlightning.device=cpu", "actor_rollout_ref.model.lora_rank=8"]),
    ("grpo", ["trainer.n_gpus_per_node=3", "actor_rollout_ref.actor.use_dynamic_bsz=false"]),
    ("grpo", ["algorithm.adv_estimator=grppo", "agentlightning.advantage=row"]),
    ("grpo", ["actor_rollout_ref.rollout.name=vllmm"]),
    ("grpo", ["trainer.v1.trainer_mode=asnyc"]),
    ("grpo", ["actor_rollout_ref.actor.policy_loss.loss_mode=gpso"]),
    ("grpo", ["actor_rollout_ref.rollout.name=hf", "agentlightning.device=cuda"]),
]
NEEDS = ["critic False reference True", "critic True reference False", *["critic False reference False"] * 2]


@pytest.mark.slow
def test_verl_takes_what_we_make(model):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(model), json.dumps(CASES)], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = [line for line in done.stdout.splitlines() if line.startswith(("made", "critic", "refused"))]
    made = ["made FSDPActorConfig", "made RolloutConfig", "made AlgoConfig"]
    n_taken = 4 * (len(NEEDS) - 1)
    taken, refused = told[:n_taken] + told[-4:], told[n_taken:-4]
    assert taken == [line for needs in NEEDS for line in (*made, needs)]
    assert [line.startswith("refused verl refuses its configuration: ") for line in refused] == [True] * 5
