"""The rules: what verl would take without a word, and learn something else from, or lose what was learned.

Everything else is left to verl, which knows its keys and asserts its sizes. The rules are:

1. Of verl's options, those for what another part does here are refused: the agent gives the reward and has the tools.
2. Samples are rollouts or rows, by what the estimator can: verl's own take rows, and of `grpo` only the last ones.
3. A KL penalty in rewards comes too late for estimators that compare rollouts.
4. `call_discount` belongs to `credit=discounted`, and a penalty for long responses to `credit=final`.
5. The loss by rollout is a mean over rows; what takes another mean cannot be it.
6. Without the actor's own probabilities, only verl's loss `bypass_mode` corrects, and `ppo_clip` not by weights.
7. Calls over HTTP cannot go on with new weights, and say the options of the chat template themselves.
8. An adapter's rank stands where the engine reads it. With LoRA, servers apart from the trainer get whole weights, with
   the adapter merged into them.
9. A run goes on from the newest checkpoint of its own, which therefore is neither removed nor written half, and has
   what is trained.
10. Groups are left out by their rewards; the agents' model is changed in its own `config.json` where verl cannot.
"""

from collections.abc import Iterator, Mapping

from omegaconf import DictConfig, OmegaConf

from lightning_verl.config.context import ROPE, changes
from lightning_verl.config.given import Given
from lightning_verl.config.own import PREFIX, Own
from lightning_verl.config.saving import has_lora
from lightning_verl.learning.options import OWN_ESTIMATORS

ROLLOUT_LOSS = "seq-mean-token-mean"
"""The loss of verl's that the weights of rows belong to."""

POLICY_LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode"
_LOSS_MODE = "actor_rollout_ref.actor.loss_agg_mode"

_AGENT = "the agent gives the reward, and has tools of its own"
_DATASETS = "samples are those of the datasets that the run is given"
_RUNNERS = "the trainer's runners run the agent: n_runners, strategy"
_ROLLOUT = "actor_rollout_ref.rollout"

TOOL_FORMAT = f"{_ROLLOUT}.multi_turn.format"
"""How a model writes calls of tools: the one option of verl's turns that has an effect here."""

_OLDER = "verl's newer trainer, which runs here, does not look at it"

_WITHOUT_EFFECT = {
    "algorithm.filter_groups.max_num_gen_batches": "set max_inflight_gen_batches beside it",
    "algorithm.pf_ppo": _OLDER,
    "algorithm.use_pf_ppo": _OLDER,
    "custom_reward_function": _AGENT,
    "reward": _AGENT,
    "reward_model": _AGENT,
    "sandbox_fusion": _AGENT,
    "data.tool_config_path": _AGENT,
    "data.function_tool_path": _AGENT,
    f"{_ROLLOUT}.multi_turn": _AGENT,
    "data.custom_cls": _DATASETS,
    "data.train_files": _DATASETS,
    "data.val_files": _DATASETS,
    "data.val_max_samples": _DATASETS,
    "data.tokenizer": "set actor_rollout_ref.model.tokenizer_path",
    "trainer.resume_from_path": "a run goes on from the newest checkpoint of its own",
    f"{_ROLLOUT}.agent.default_agent_loop": _RUNNERS,
    f"{_ROLLOUT}.agent.agent_loop_config_path": _RUNNERS,
    f"{_ROLLOUT}.do_sample": f"what is learned from is drawn at {_ROLLOUT}.temperature",
}
"""By key, or what keys are under, why it is not used."""

_UNUSED = (
    "data.audio_key",
    "data.dataloader_num_workers",
    "data.filter_overlong_prompts",
    "data.filter_overlong_prompts_workers",
    "data.image_key",
    "data.image_patch_size",
    "data.mm_processor_kwargs",
    "data.prompt_key",
    "data.return_full_prompt",
    "data.return_multi_modal_inputs",
    "data.return_raw_chat",
    "data.return_raw_input_ids",
    "data.reward_fn_key",
    "data.truncation",
    "data.trust_remote_code",
    "data.use_shm",
    "data.val_batch_size",
    "data.validation_shuffle",
    "data.video_key",
    "skip",
    "trainer.balance_batch",
    "trainer.esi_redundant_time",
    "trainer.log_val_generations",
    "trainer.ray_wait_register_center_timeout",
    "trainer.use_v1",
    "trainer.validation_data_dir",
    f"{_ROLLOUT}.agent.num_workers",
    f"{_ROLLOUT}.moe_load_balance_metrics_interval",
    f"{_ROLLOUT}.over_sample_rate",
    f"{_ROLLOUT}.trace",
)
"""Keys, or what keys are under, that have no effect here, of which nobody learns something else."""

_WITHOUT_DATA = ("remax", "gdpo", "optimal_token_baseline", "tir_optimal_token_baseline")

_REFUSED = {
    "trainer.del_local_ckpt_after_load": "what was learned would be gone if the run ended before its next checkpoint",
    "actor_rollout_ref.actor.checkpoint.async_save": "no run could go on from what verl does not write down as newest",
    "critic.checkpoint.async_save": "no run could go on from what verl does not write down as newest",
    "distillation.enabled": "what the teacher says is collected by verl's own agents, not here",
    f"{_ROLLOUT}.enable_rollout_routing_replay": "the rollouts do not record which experts have answered",
}
"""By key, why it cannot be true."""


def faults_of_conflicts(config: DictConfig, given: Given, own: Own, *, packaged: DictConfig) -> Iterator[str]:
    """Give what contradicts itself.

    Args:
        config: verl's, whole.
        given: What the user set of it.
        own: Our own keys.
        packaged: verl's defaults: who says the same has said nothing.
    """
    yield from _without_effect(given, packaged)
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
    for key, why in _REFUSED.items():
        if OmegaConf.select(config, key):
            yield f"{key} is true: {why}; leave it out"


def is_loss_by_rollout(given: Given, own: Own) -> bool:
    """Whether rollouts weigh the same in the loss."""
    return own.loss == "rollout" or (own.loss is None and given.get(_LOSS_MODE) in (None, ROLLOUT_LOSS))


def unused_options(given: Given, own: Own, *, packaged: DictConfig) -> list[str]:
    """Return which options have no effect here, and do no harm.

    Args:
        given: What the user set of verl's.
        own: Our own keys.
        packaged: verl's defaults, as for `faults_of_conflicts`.
    """
    rows = own.trace_aggregator
    limits = {"trajectory_max_prompt_length", "trajectory_max_response_length"} & rows.model_fields_set
    return [
        *(key for key in given.values if _is_under(key, _UNUSED) and _says_something(given, key, packaged)),
        *(f"{PREFIX}.trace_aggregator.{name}" for name in sorted(limits) if rows.level == "transition"),
    ]


def _without_effect(given: Given, packaged: DictConfig) -> Iterator[str]:
    for key in given.values:
        why = next((why for name, why in _WITHOUT_EFFECT.items() if _is_under(key, (name,))), None)
        if why is not None and key != TOOL_FORMAT and _says_something(given, key, packaged):
            yield f"{key} has no effect: {why}; leave it out"


def _is_under(key: str, names: tuple[str, ...]) -> bool:
    return f"{key}.".startswith(tuple(f"{name}." for name in names))


def _says_something(given: Given, key: str, packaged: DictConfig) -> bool:
    value, default = given.get(key), OmegaConf.select(packaged, key, throw_on_resolution_failure=False)
    return value not in (None, "", default) and (value is not False or default is True)


def _estimator(config: DictConfig, own: Own) -> Iterator[str]:
    name = str(config.algorithm.adv_estimator)
    if name in _WITHOUT_DATA:
        yield f"algorithm.adv_estimator is {name!r}, which needs what rollouts do not collect; use grpo or rloo"
    if name not in OWN_ESTIMATORS and own.advantage == "rollout":
        yield (
            f"{PREFIX}.advantage is 'rollout', which {', '.join(OWN_ESTIMATORS)} have; {name!r} is verl's, which takes "
            "each row for a sample: set it to row"
        )
    if own.advantage == "row" and name == "grpo" and own.credit != "final":
        yield (
            f"{PREFIX}.advantage is 'row' with grpo, of which verl compares only the last row of each rollout: "
            f"{PREFIX}.credit={own.credit} would have no effect; leave {PREFIX}.advantage out"
        )
    if own.mask_truncated and (own.advantage == "row" or name not in OWN_ESTIMATORS):
        yield (
            f"{PREFIX}.mask_truncated leaves rows out, and {name!r} compares rows, so that their rewards would be "
            f"missing; use {PREFIX}.advantage=rollout with {', '.join(OWN_ESTIMATORS)}"
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
    rows = own.trace_aggregator
    is_default = rows.level == "trajectory" and "trajectory_max_response_length" not in rows.model_fields_set
    if own.overlong_buffer and is_default and config.data.max_response_length < rows.trajectory_max_response_length:
        yield (
            f"{PREFIX}.overlong_buffer is {own.overlong_buffer}, and counts from the limit of a whole trajectory, "
            f"which is {rows.trajectory_max_response_length} and not data.max_response_length; set "
            f"{PREFIX}.trace_aggregator.trajectory_max_response_length, too"
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
    """An adapter that would not be trained or kept, or that servers apart from the trainer would not get."""
    actor, model = config.actor_rollout_ref.actor, config.actor_rollout_ref.model
    read, other = ("lora.rank", "lora_rank") if actor.strategy == "megatron" else ("lora_rank", "lora.rank")
    if OmegaConf.select(model, other) > 0 and OmegaConf.select(model, read) <= 0:
        yield (
            f"actor_rollout_ref.model.{other} is {OmegaConf.select(model, other)}, which the engine {actor.strategy!r} "
            f"does not read: it would train the whole model; set actor_rollout_ref.model.{read}"
        )
    if model.lora_adapter_path and str(actor.strategy).startswith("fsdp") and model.lora_rank <= 0:
        yield (
            f"actor_rollout_ref.model.lora_adapter_path is {model.lora_adapter_path!r}, which verl reads with "
            "actor_rollout_ref.model.lora_rank only; set that to the rank of the adapter"
        )
    is_separate = config.trainer.v1.trainer_mode == "separate_async"
    if not has_lora(config) or not (is_separate or config.actor_rollout_ref.rollout.name == "hf"):
        return
    if given.get("actor_rollout_ref.model.lora.merge") is False:
        yield (
            "actor_rollout_ref.model.lora.merge is false; with separate_async and with rollout.name=hf whole weights "
            "are sent, without the adapter unless it is merged into them; leave it out"
        )
    if not is_separate:
        return
    backend = str(config.actor_rollout_ref.rollout.checkpoint_engine.backend)
    if backend.startswith("delta"):
        yield (
            f"actor_rollout_ref.rollout.checkpoint_engine.backend is {backend!r}, which sends what has changed in the "
            "base weights, and with LoRA nothing does; set it to nccl, or another one that sends whole weights"
        )


def _checkpoints(config: DictConfig, given: Given, own: Own) -> Iterator[str]:
    mode, frequency = config.trainer.resume_mode, given.get("trainer.save_freq")
    if mode not in ("auto", "disable"):
        yield (
            f"trainer.resume_mode is {mode!r}, and a run goes on from the newest checkpoint of its own (auto), or not "
            "(disable); to begin with what another one has learned, set actor_rollout_ref.model.path to the folder "
            "actor/huggingface of its checkpoint"
        )
    actor = config.actor_rollout_ref.actor
    is_without = str(actor.strategy).startswith("fsdp") and "model" not in actor.checkpoint.save_contents
    if is_without and config.trainer.save_freq > 0 and (mode == "auto" or has_lora(config)):
        yield (
            f"actor_rollout_ref.actor.checkpoint.save_contents is {list(actor.checkpoint.save_contents)}, of which no "
            "run can go on and no adapter is written; add model"
            + ("" if has_lora(config) else ", or set trainer.resume_mode=disable")
        )
    if frequency is not None and "checkpoint_minutes" in own.model_fields_set:
        yield (
            f"{PREFIX}.checkpoint_minutes is {own.checkpoint_minutes:g}, and trainer.save_freq is {frequency!r}, which "
            "says it in steps; set one of the two"
        )


def _groups(config: DictConfig) -> Iterator[str]:
    groups = config.algorithm.filter_groups
    if groups.enable and groups.metric != "reward":
        yield (
            f"algorithm.filter_groups.metric is {groups.metric!r}, and groups are compared by the rewards that agents "
            "give; set it to reward"
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
