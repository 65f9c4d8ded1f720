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
from typing import Any, NamedTuple

from lightning_tokens.context import ROPE
from lightning_tokens.learning.options import OWN_ESTIMATORS
from omegaconf import DictConfig, OmegaConf

from lightning_verl.config.context import changes
from lightning_verl.config.given import Given
from lightning_verl.config.own import PREFIX, Own
from lightning_verl.config.saving import has_lora

ROLLOUT_LOSS = "seq-mean-token-mean"
"""The loss of verl's that the weights of rows belong to."""

POLICY_LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode"
_LOSS_MODE = "actor_rollout_ref.actor.loss_agg_mode"

_AGENT = "the agent gives the reward, and has tools of its own"
_DATASETS = "samples are those of the datasets that the run is given"
_RUNNERS = "the trainer's runners run the agent: n_runners, strategy"
_MODEL = "actor_rollout_ref.model"
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
    "skip",
    f"{_ROLLOUT}.agent.num_workers",
    f"{_ROLLOUT}.moe_load_balance_metrics_interval",
    f"{_ROLLOUT}.over_sample_rate",
    f"{_ROLLOUT}.trace",
    "data.audio_key",
    "data.image_key",
    "data.image_patch_size",
    "data.video_key",
    "data.mm_processor_kwargs",
    "data.dataloader_num_workers",
    "data.filter_overlong_prompts",
    "data.filter_overlong_prompts_workers",
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
    "trainer.balance_batch",
    "trainer.esi_redundant_time",
    "trainer.log_val_generations",
    "trainer.ray_wait_register_center_timeout",
    "trainer.use_v1",
    "trainer.validation_data_dir",
)
"""Keys, or what keys are under, that have no effect here, of which nobody learns something else."""

_REFUSED = {
    "trainer.del_local_ckpt_after_load": "what was learned would be gone if the run ended before its next checkpoint",
    "actor_rollout_ref.actor.checkpoint.async_save": "no run could go on from what verl does not write down as newest",
    "critic.checkpoint.async_save": "no run could go on from what verl does not write down as newest",
    "distillation.enabled": "what the teacher says is collected by verl's own agents, not here",
    f"{_ROLLOUT}.enable_rollout_routing_replay": "the rollouts do not record which experts have answered",
}
"""By key, why it cannot be true."""

_WITHOUT_DATA = ("remax", "gdpo", "optimal_token_baseline", "tir_optimal_token_baseline")


class Facts(NamedTuple):
    """What the rules look at."""

    config: DictConfig
    """verl's, whole."""
    given: Given
    """What the user set of it."""
    own: Own
    """Our own keys."""

    def value(self, key: str) -> Any:
        """Return what a key of either has; None where there is none."""
        if key.startswith(f"{PREFIX}."):
            return getattr(self.own, key.removeprefix(f"{PREFIX}."))
        found = OmegaConf.select(self.config, key)
        return OmegaConf.to_container(found) if OmegaConf.is_config(found) else found

    @property
    def estimator(self) -> str:
        return str(self.config.algorithm.adv_estimator)

    @property
    def mode(self) -> str:
        return str(self.config.trainer.v1.trainer_mode)

    @property
    def is_fsdp(self) -> bool:
        return str(self.config.actor_rollout_ref.actor.strategy).startswith("fsdp")

    @property
    def is_loss_by_rollout(self) -> bool:
        """Whether rollouts weigh the same in the loss."""
        return self.own.loss == "rollout" or (
            self.own.loss is None and self.given.get(_LOSS_MODE) in (None, ROLLOUT_LOSS)
        )


def _of_samples(facts: Facts) -> Iterator[tuple[str, str]]:
    """Rules 2 to 4."""
    own, estimator = facts.own, facts.estimator
    ours = ", ".join(OWN_ESTIMATORS)
    if estimator in _WITHOUT_DATA:
        yield "algorithm.adv_estimator", "it needs what rollouts do not collect; use grpo or rloo"
    if own.advantage == "rollout" and estimator not in OWN_ESTIMATORS:
        yield (
            "agentlightning.advantage",
            f"{estimator} takes each row for a sample ({ours} have whole rollouts): set it to row",
        )
    if own.advantage == "row" and estimator == "grpo" and own.credit != "final":
        yield (
            "agentlightning.credit",
            "with agentlightning.advantage=row and grpo verl compares only the last row of each rollout, so it would "
            "have no effect; leave agentlightning.advantage out",
        )
    if own.mask_truncated and (own.advantage == "row" or estimator not in OWN_ESTIMATORS):
        yield (
            "agentlightning.mask_truncated",
            f"it leaves rows out, and {estimator} compares rows here, so that their rewards would be missing; use "
            f"agentlightning.advantage=rollout with {ours}",
        )
    if facts.config.algorithm.use_kl_in_reward and estimator in ("grpo", "rloo") and own.advantage != "row":
        yield (
            "algorithm.use_kl_in_reward",
            f"it changes rewards after {estimator} has compared them; set "
            "actor_rollout_ref.actor.use_kl_loss=true instead, or agentlightning.advantage=row",
        )
    if own.call_discount != 1.0 and own.credit != "discounted":
        yield "agentlightning.call_discount", "it has an effect with agentlightning.credit=discounted only"
    elif own.call_discount != 1.0 and estimator == "gae":
        yield "agentlightning.call_discount", "with gae, algorithm.gamma discounts by tokens"
    if own.overlong_buffer and own.credit != "final":
        yield (
            "agentlightning.credit",
            "agentlightning.overlong_buffer lowers the reward of a whole rollout; set "
            "agentlightning.credit=final, or agentlightning.mask_truncated instead of the buffer",
        )
    rows, limit = own.trace_aggregator, "trajectory_max_response_length"
    is_default = rows.level == "trajectory" and limit not in rows.model_fields_set
    if own.overlong_buffer and is_default and facts.config.data.max_response_length < getattr(rows, limit):
        yield (
            "agentlightning.overlong_buffer",
            "it counts from the limit of a whole trajectory, and not from data.max_response_length; set "
            f"agentlightning.trace_aggregator.{limit}, too",
        )
    if own.overlong_penalty != 1.0 and not own.overlong_buffer:
        yield (
            "agentlightning.overlong_penalty",
            "it has an effect with agentlightning.overlong_buffer; set that, too",
        )


def _of_losses(facts: Facts) -> Iterator[tuple[str, str]]:
    """Rules 5 and 6."""
    if facts.own.loss == "rollout" and facts.given.get(_LOSS_MODE) not in (None, ROLLOUT_LOSS):
        yield _LOSS_MODE, "agentlightning.loss is 'rollout'; set one of the two"
    if facts.value(POLICY_LOSS) == "geo_mean" and facts.is_loss_by_rollout:
        yield POLICY_LOSS, "it takes a mean of its own over each micro-batch; set agentlightning.loss=verl"
    correction, chosen = facts.config.algorithm.rollout_correction, facts.given.get(POLICY_LOSS)
    if not correction.bypass_mode:
        if chosen == "bypass_mode":
            yield POLICY_LOSS, "it needs algorithm.rollout_correction.bypass_mode=true; set it, too"
    elif chosen not in (None, "bypass_mode"):
        if correction.rollout_is or correction.rollout_rs:
            yield (
                POLICY_LOSS,
                "with it and bypass_mode, algorithm.rollout_correction.rollout_is and rollout_rs have no effect; leave "
                "these out, or the loss_mode",
            )
    elif correction.loss_type == "ppo_clip" and correction.rollout_is:
        yield (
            "algorithm.rollout_correction.rollout_is",
            "it has no effect with bypass_mode and loss_type=ppo_clip; set loss_type=reinforce, or leave it out",
        )


def _of_servers(facts: Facts) -> Iterator[tuple[str, str]]:
    """Rules 7 and 8."""
    if facts.own.backend == "openai" and facts.config.data.apply_chat_template_kwargs:
        yield (
            "data.apply_chat_template_kwargs",
            "it has no effect with agentlightning.backend=openai: the agent says it in its calls, as "
            "chat_template_kwargs; leave it out",
        )
    if facts.own.backend == "openai" and facts.mode != "sync":
        yield (
            "trainer.v1.trainer_mode",
            "with agentlightning.backend=openai it cuts answers short when weights change; only "
            "agentlightning.backend=tokens goes on with them",
        )
    model, engine = facts.config.actor_rollout_ref.model, facts.config.actor_rollout_ref.actor.strategy
    read, other = ("lora.rank", "lora_rank") if engine == "megatron" else ("lora_rank", "lora.rank")
    if facts.value(f"{_MODEL}.{other}") > 0 and facts.value(f"{_MODEL}.{read}") <= 0:
        yield f"{_MODEL}.{other}", f"{engine} does not read it, and would train the whole model; set {_MODEL}.{read}"
    if model.lora_adapter_path and facts.is_fsdp and model.lora_rank <= 0:
        yield f"{_MODEL}.lora_adapter_path", f"verl reads it with {_MODEL}.lora_rank only; set that to its rank"
    is_separate = has_lora(facts.config) and facts.mode == "separate_async"
    is_hf = has_lora(facts.config) and facts.config.actor_rollout_ref.rollout.name == "hf"
    if (is_separate or is_hf) and facts.given.get(f"{_MODEL}.lora.merge") is False:
        yield (
            f"{_MODEL}.lora.merge",
            "with separate_async and with rollout.name=hf whole weights are sent, without the adapter unless it is "
            "merged into them; leave it out",
        )
    backend = f"{_ROLLOUT}.checkpoint_engine.backend"
    if is_separate and str(facts.value(backend)).startswith("delta"):
        yield (
            backend,
            "it sends what has changed in the base weights, and with LoRA nothing does; set it to nccl, or another one "
            "that sends whole weights",
        )


def _of_checkpoints_and_groups(facts: Facts) -> Iterator[tuple[str, str]]:
    """Rules 9 and 10."""
    trainer, groups = facts.config.trainer, facts.config.algorithm.filter_groups
    if trainer.resume_mode not in ("auto", "disable"):
        yield (
            "trainer.resume_mode",
            "a run goes on from the newest checkpoint of its own (auto), or not (disable); to begin with what another "
            f"one has learned, set {_MODEL}.path to the folder actor/huggingface of its checkpoint",
        )
    saved = "actor_rollout_ref.actor.checkpoint.save_contents"
    is_needed = trainer.save_freq > 0 and (trainer.resume_mode == "auto" or has_lora(facts.config))
    if is_needed and facts.is_fsdp and "model" not in facts.value(saved):
        yield (
            saved,
            "no run can go on from that, and no adapter is written; add model, or (without LoRA) set "
            "trainer.resume_mode=disable",
        )
    if facts.given.get("trainer.save_freq") is not None and "checkpoint_minutes" in facts.own.model_fields_set:
        yield "trainer.save_freq", "it says in steps what agentlightning.checkpoint_minutes says; set one of the two"
    yield from ((key, f"{why}; leave it out") for key, why in _REFUSED.items() if facts.value(key))
    if groups.enable and groups.metric != "reward":
        yield "algorithm.filter_groups.metric", "groups are compared by the rewards that agents give; set it to reward"
    if trainer.val_only and not trainer.val_before_train:
        yield "trainer.val_before_train", "without it verl trains although trainer.val_only is true; leave one out"
    changed = facts.config.actor_rollout_ref.model.override_config
    for name in ROPE:
        if isinstance(changes(changed).get(name), Mapping):
            yield (
                f"{_MODEL}.override_config.{name}",
                "neither verl nor its servers can change it; write it into the config.json of the model",
            )


def faults_of_conflicts(facts: Facts, *, packaged: DictConfig) -> Iterator[str]:
    """Give what contradicts itself.

    Args:
        facts: What was set, and what comes of it.
        packaged: verl's defaults: who says the same has said nothing.
    """
    for key in facts.given.values:
        why = next((why for name, why in _WITHOUT_EFFECT.items() if _is_under(key, (name,))), None)
        if why is not None and key != TOOL_FORMAT and _says_something(facts.given, key, packaged):
            yield f"{key} has no effect: {why}; leave it out"
    for rules in (_of_samples, _of_losses, _of_servers, _of_checkpoints_and_groups):
        yield from (f"{key} is {facts.value(key)!r}: {why}" for key, why in rules(facts))


def unused_options(facts: Facts, *, packaged: DictConfig) -> list[str]:
    """Return which options have no effect here, and do no harm.

    Args:
        facts: As for `faults_of_conflicts`.
        packaged: The same.
    """
    given, rows = facts.given, facts.own.trace_aggregator
    limits = {"trajectory_max_prompt_length", "trajectory_max_response_length"} & rows.model_fields_set
    unused = (*_UNUSED, *(("algorithm.gamma", "algorithm.lam") if facts.estimator in ("grpo", "rloo") else ()))
    return [
        *(key for key in given.values if _is_under(key, unused) and _says_something(given, key, packaged)),
        *(f"{PREFIX}.trace_aggregator.{name}" for name in sorted(limits) if rows.level == "transition"),
    ]


def _is_under(key: str, names: tuple[str, ...]) -> bool:
    return f"{key}.".startswith(tuple(f"{name}." for name in names))


def _says_something(given: Given, key: str, packaged: DictConfig) -> bool:
    value, default = given.get(key), OmegaConf.select(packaged, key, throw_on_resolution_failure=False)
    return value not in (None, "", default) and (value is not False or default is True)
