"""That verl takes what we make."""

import warnings

import pytest
from lightning_verl.config import load_settings
from omegaconf import OmegaConf

from lightning_core.errors import ConfigError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of verl
    from lightning_verl.trainer import check_with_verl
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass

pytestmark = pytest.mark.filterwarnings("ignore")  # those of verl and of what it imports


def resolved(model, preset, more):
    config = load_settings([f"actor_rollout_ref.model.path={model}", *more], preset=preset).verl
    OmegaConf.set_struct(config, False)
    OmegaConf.resolve(config)
    return config


@pytest.mark.parametrize(
    ("preset", "more", "critic", "reference"),
    [
        ("grpo", ["actor_rollout_ref.actor.use_kl_loss=true"], False, True),
        ("ppo", ["agentlightning.device=cpu"], True, False),
        ("rloo", ["agentlightning.device=cpu", "actor_rollout_ref.model.lora_rank=8"], False, False),
        ("grpo", ["actor_rollout_ref.rollout.name=hf", "agentlightning.device=cuda"], False, False),
    ],
)
def test_verl_takes_what_we_make(model, preset, more, critic, reference):
    config = resolved(model, preset, more)
    check_with_verl(config)
    sections = ("actor_rollout_ref.actor", "actor_rollout_ref.rollout", "algorithm")
    made = [type(omega_conf_to_dataclass(OmegaConf.select(config, section))).__name__ for section in sections]
    assert made == ["FSDPActorConfig", "RolloutConfig", "AlgoConfig"]
    assert (need_critic(config), need_reference_policy(config)) == (critic, reference)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["trainer.n_gpus_per_node=3", "actor_rollout_ref.actor.use_dynamic_bsz=false"], ""),
        (["algorithm.adv_estimator=grppo"], "is 'grppo'; .*Did you mean 'grpo'"),
        (["actor_rollout_ref.rollout.name=vllmm"], "Did you mean 'vllm'"),
        (["trainer.v1.trainer_mode=asnyc"], "Unknown trainer 'asnyc'"),
        (["actor_rollout_ref.actor.policy_loss.loss_mode=gpso"], "Unsupported loss mode: gpso"),
        (["trainer.logger=[console, wandbb]"], "trainer.logger is 'wandbb'; there are: .*Did you mean 'wandb'"),
        (["trainer.logger=swanlab"], "trainer.logger has 'swanlab', which is not installed; pip install swanlab"),
    ],
)
def test_what_verl_would_refuse_in_its_workers_ends_before_ray(model, more, told):
    with pytest.raises(ConfigError, match=f"verl refuses its configuration: .*{told}"):
        check_with_verl(resolved(model, "grpo", more))
