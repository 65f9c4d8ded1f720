"""What cannot go together, whatever the models and the data are."""

from collections.abc import Iterator, Mapping

from omegaconf import DictConfig, OmegaConf

from lightning_core.registry import did_you_mean
from lightning_verl.config.context import ROPE, changes
from lightning_verl.config.given import Given
from lightning_verl.config.own import PREFIX, Own
from lightning_verl.config.saving import has_lora
from lightning_verl.cpu.options import IMPOSSIBLE_ON_CPU
from lightning_verl.learning import OWN_ESTIMATORS

ROLLOUT_LOSS = "seq-mean-token-mean"
"""The loss of verl's that the weights of rows belong to."""

POLICY_LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode"
_LOSS_MODE = "actor_rollout_ref.actor.loss_agg_mode"

_ESTIMATORS = (
    *OWN_ESTIMATORS,
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "opo",
    "gpg",
    "grpo_passk",
    "grpo_vectorized",
    "rloo_vectorized",
)
"""Those of verl 0.9 that need nothing but rewards, or a critic."""

_OTHERS = {
    "remax": "needs a greedy rollout beside each group; use rloo",
    "gdpo": "needs rewards by dimension in verl's own form; use agentlightning.reward_weights with grpo",
    "optimal_token_baseline": "needs what verl's newer trainer does not collect; use grpo or rloo",
    "tir_optimal_token_baseline": "needs what verl's newer trainer does not collect; use grpo or rloo",
}

_METRIC = "reward"
"""The only one that rows have, to leave groups out by."""

_RESUME_MODES = ("auto", "disable")


def faults_of_conflicts(config: DictConfig, given: Given, own: Own) -> Iterator[str]:
    """Give what contradicts itself.

    Args:
        config: verl's, whole.
        given: What the user set of it.
        own: Our own keys.
    """
    yield from _device(config, given, own)
    yield from _estimator(config, own)
    yield from _loss(config, given, own)
    yield from _mode(config, own)
    yield from _adapters(config, given)
    yield from _checkpoints(config, given, own)
    yield from _groups(config)
    if config.trainer.val_only and not config.trainer.val_before_train:
        yield (
            "trainer.val_only is true, and trainer.val_before_train is false, without which verl trains nevertheless; "
            "leave one of the two out"
        )
    yield from _rope(config)
    if config.distillation.enabled:
        yield (
            "distillation.enabled is true; what the teacher says is collected by verl's own agents, not here; leave it "
            "out"
        )
    if config.actor_rollout_ref.rollout.enable_rollout_routing_replay:
        yield (
            "actor_rollout_ref.rollout.enable_rollout_routing_replay is true, and the rollouts do not record which "
            "experts have answered; leave it out"
        )


def is_loss_by_rollout(given: Given, own: Own) -> bool:
    """Whether rollouts weigh the same in the loss."""
    return own.loss == "rollout" or (own.loss is None and given.get(_LOSS_MODE) in (None, ROLLOUT_LOSS))


def _device(config: DictConfig, given: Given, own: Own) -> Iterator[str]:
    if own.device != "cpu":
        return
    for key, (possible, why) in IMPOSSIBLE_ON_CPU.items():
        value = OmegaConf.select(config, key)
        if value not in possible:
            takes = " or ".join(map(str, possible))
            yield f"{given.where(tuple(key.split('.')))}{key} is {value!r}; on a CPU it is {takes}: {why}"


def _estimator(config: DictConfig, own: Own) -> Iterator[str]:
    name = str(config.algorithm.adv_estimator)
    if name in _OTHERS:
        yield f"algorithm.adv_estimator is {name!r}, which {_OTHERS[name]}"
    elif name not in _ESTIMATORS and own.advantage != "row":
        yield (
            f"algorithm.adv_estimator is {name!r}; there are: {', '.join(_ESTIMATORS)}"
            f"{did_you_mean(name, _ESTIMATORS) or '.'} "
            f"For one that you registered with verl, set {PREFIX}.advantage=row"
        )
    elif name not in OWN_ESTIMATORS and own.advantage == "rollout":
        yield (
            f"{PREFIX}.advantage is 'rollout', which {', '.join(OWN_ESTIMATORS)} have; {name!r} is verl's, which takes "
            "each row for a sample: set it to row"
        )
    if own.advantage == "row" and name == "grpo" and own.credit != "final":
        yield (
            f"{PREFIX}.advantage is 'row' with grpo, of which verl compares only the last row of each rollout: "
            f"{PREFIX}.credit={own.credit} would have no effect; leave {PREFIX}.advantage out"
        )
    if config.algorithm.use_kl_in_reward and name in ("grpo", "rloo") and own.advantage != "row":
        yield (
            f"algorithm.use_kl_in_reward changes rewards after {name} has compared them; set "
            f"actor_rollout_ref.actor.use_kl_loss=true instead, or {PREFIX}.advantage=row"
        )
    if own.call_discount != 1.0 and own.credit != "discounted":
        yield f"{PREFIX}.call_discount is {own.call_discount:g}, and has an effect with {PREFIX}.credit=discounted only"
    elif own.call_discount != 1.0 and name == "gae":
        yield f"{PREFIX}.call_discount is {own.call_discount:g}; with gae, algorithm.gamma discounts by tokens"
    if own.overlong_buffer and own.credit != "final":
        yield (
            f"{PREFIX}.overlong_buffer lowers the reward of a whole rollout, and {PREFIX}.credit is {own.credit!r}; "
            f"set it to final, or {PREFIX}.mask_truncated instead"
        )
    if own.overlong_penalty != 1.0 and not own.overlong_buffer:
        yield f"{PREFIX}.overlong_penalty has an effect with {PREFIX}.overlong_buffer only; set that, too"


def _mode(config: DictConfig, own: Own) -> Iterator[str]:
    mode = config.trainer.v1.trainer_mode
    if own.backend == "openai" and config.data.apply_chat_template_kwargs:
        yield (
            f"data.apply_chat_template_kwargs has no effect with {PREFIX}.backend=openai: the agent says it in its "
            "calls, as chat_template_kwargs; leave it out"
        )
    if own.backend == "openai" and mode != "sync":
        yield (
            f"{PREFIX}.backend is 'openai', and trainer.v1.trainer_mode is {mode!r}, which cuts answers short when "
            f"weights change; only {PREFIX}.backend=tokens goes on with them"
        )


def _adapters(config: DictConfig, given: Given) -> Iterator[str]:
    """What would leave the servers of the mode `separate_async` with the weights that the run began with."""
    if config.trainer.v1.trainer_mode != "separate_async" or not has_lora(config):
        return
    if given.get("actor_rollout_ref.model.lora.merge") is False:
        yield (
            "actor_rollout_ref.model.lora.merge is false; with separate_async verl sends whole weights, without the "
            "adapter unless it is merged into them; leave it out"
        )
    backend = str(config.actor_rollout_ref.rollout.checkpoint_engine.backend)
    if backend.startswith("delta"):
        yield (
            f"actor_rollout_ref.rollout.checkpoint_engine.backend is {backend!r}, which sends what has changed in the "
            "base weights, and with LoRA nothing does; set it to nccl, or another one that sends whole weights"
        )


def _checkpoints(config: DictConfig, given: Given, own: Own) -> Iterator[str]:
    mode, frequency = config.trainer.resume_mode, given.get("trainer.save_freq")
    if mode == "resume_path":
        yield (
            "trainer.resume_mode is 'resume_path', and a run goes on from the newest checkpoint of its own (auto); to "
            "begin with what another one has learned, set actor_rollout_ref.model.path to the folder "
            "actor/huggingface of its checkpoint"
        )
    elif mode not in _RESUME_MODES:
        yield (
            f"trainer.resume_mode is {mode!r}; there are: {', '.join(_RESUME_MODES)}{did_you_mean(mode, _RESUME_MODES)}"
        )
    if config.trainer.del_local_ckpt_after_load:
        yield (
            "trainer.del_local_ckpt_after_load is true, and what was learned would be gone if the run ended before its "
            "next checkpoint; leave it out"
        )
    for name in ("actor_rollout_ref.actor", "critic"):
        if OmegaConf.select(config, f"{name}.checkpoint.async_save"):
            yield (
                f"{name}.checkpoint.async_save is true, and verl does not write down then which checkpoint is the "
                "newest, so that no run could go on from it; leave it out"
            )
    if frequency is not None and "checkpoint_minutes" in own.model_fields_set:
        yield (
            f"{PREFIX}.checkpoint_minutes is {own.checkpoint_minutes:g}, and trainer.save_freq is {frequency!r}, which "
            "says it in steps; set one of the two"
        )


def _groups(config: DictConfig) -> Iterator[str]:
    groups = config.algorithm.filter_groups
    if groups.enable and groups.metric != _METRIC:
        yield (
            f"algorithm.filter_groups.metric is {groups.metric!r}, and groups are compared by the rewards that agents "
            f"give; set it to {_METRIC}"
        )


def _rope(config: DictConfig) -> Iterator[str]:
    for name in ROPE:
        if isinstance(changes(config.actor_rollout_ref.model.override_config).get(name), Mapping):
            yield (
                f"actor_rollout_ref.model.override_config has {name}, which neither verl nor its servers can change; "
                "write it into the config.json of the model"
            )


def _loss(config: DictConfig, given: Given, own: Own) -> Iterator[str]:
    mode = given.get(_LOSS_MODE)
    if own.loss == "rollout" and mode not in (None, ROLLOUT_LOSS):
        yield f"{PREFIX}.loss is 'rollout', and {_LOSS_MODE} is {mode!r}; set one of the two"
    if config.actor_rollout_ref.actor.policy_loss.loss_mode == "geo_mean" and is_loss_by_rollout(given, own):
        yield (
            f"the policy loss 'geo_mean' takes a mean of its own over each micro-batch; set {PREFIX}.loss=verl, which "
            "leaves it so"
        )
    yield from _bypass(config, given)


def _bypass(config: DictConfig, given: Given) -> Iterator[str]:
    """What verl would not heed where the actor's own probabilities of the old policy are left out."""
    correction, chosen = config.algorithm.rollout_correction, given.get(POLICY_LOSS)
    if not correction.bypass_mode:
        if chosen == "bypass_mode":
            yield "the policy loss 'bypass_mode' needs algorithm.rollout_correction.bypass_mode=true; set it, too"
    elif chosen not in (None, "bypass_mode"):
        if correction.rollout_is or correction.rollout_rs:
            yield (
                "algorithm.rollout_correction.rollout_is and rollout_rs have no effect with bypass_mode and the policy "
                f"loss {chosen!r}; leave them out, or leave {POLICY_LOSS} out"
            )
    elif correction.loss_type == "ppo_clip" and correction.rollout_is:
        yield (
            "algorithm.rollout_correction.rollout_is has no effect with bypass_mode and loss_type=ppo_clip; set "
            "loss_type=reinforce, or leave it out"
        )
