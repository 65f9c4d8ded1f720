"""Our own keys, and the rules: what verl would take silently, and learn something else from, or lose what was learned.

Everything else is left to verl, which knows its keys and asserts its sizes. The rules are:

1. Of verl's options, those for what another part does here are refused: the agent gives the reward and has the tools.
2. Samples are rollouts or rows, by what the estimator can: verl's own take rows.
3. A KL penalty in rewards comes too late for estimators that compare rollouts.
4. Options of what is learned fit each other; see `LearningOptions.conflicts`.
5. The loss by rollout is a mean over rows; what takes another mean cannot be it.
6. The ratio is to the actor's own probabilities.
7. The engine is FSDP, which reads an adapter's rank in `lora_rank`; a server that takes whole weights gets the adapter
   merged into them. Generation takes turns with the training on the same GPUs.
8. A run goes on from the newest checkpoint of its own, which therefore is neither removed nor written half, and has
   what is trained.
9. Groups are left out by their rewards.
10. Numbers are within their bounds; a row fits into a micro-batch, a batch into the dataset.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from lightning_tokens.engine import context_length
from lightning_tokens.learning.options import OWN_ESTIMATORS, Credit, LearningOptions, Level
from omegaconf import DictConfig, OmegaConf, open_dict
from pydantic import BaseModel, ConfigDict, Field

PREFIX = "agentlightning"
"""The key that our own ones are under, as in agentlightning 0.3; everything else in a configuration is verl's."""

ROLLOUT_LOSS = "seq-mean-token-mean"
"""The loss of verl's that the weights of rows belong to."""

ACTOR, MODEL, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.model", "actor_rollout_ref.rollout"
"""The parts of verl's configuration that most is said of."""

POLICY_LOSS = f"{ACTOR}.policy_loss.loss_mode"

ADAPTER = "lora_adapter"
"""The folder of an adapter, in the checkpoint of an actor that FSDP trains."""

_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Length = Annotated[int, Field(strict=True, ge=1)]


def keys(section: str, names: str) -> tuple[str, ...]:
    """Return the dotted keys of names, which have spaces between them, in a section."""
    return tuple(f"{section}.{name}" for name in names.split())


class TraceAggregator(BaseModel):
    """`agentlightning.trace_aggregator`: what a row is, and how long it may be."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    level: Level = "transition"
    """A row for each model call, or one for all calls whose tokens are exactly continuous."""
    trajectory_max_prompt_length: _Length = 2048
    """Tokens; the longest prompt of a trajectory, which is the first turn's."""
    trajectory_max_response_length: _Length = 8192
    """Tokens; the longest response of a trajectory: all answers, and what came in between."""


class Own(BaseModel):
    """What is set under `agentlightning`; `docs/verl.md` says what each key means."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: Literal["cpu", "cuda"] | None = None
    """Where models are trained and served; None to look for an accelerator."""
    trace_aggregator: TraceAggregator = TraceAggregator()
    credit: Credit = "final"
    """Which rewards an answer is judged by."""
    call_discount: Annotated[_Number, Field(ge=0, le=1)] = 1.0
    """By how much a reward counts less for each call before it."""
    reward_weights: dict[str, _Number] = Field(default_factory=dict)
    """By name of a reward, its weight; empty for the primary reward alone."""
    on_failure: Literal["drop"] | _Number = "drop"
    """What a rollout that failed is worth."""
    mask_truncated: bool = False
    """Whether rollouts that were cut off are left out of the loss, as in DAPO."""
    overlong_buffer: Annotated[int, Field(strict=True, ge=0)] = 0
    """Tokens before the limit of a response over which its reward sinks, as in DAPO; 0 for none."""
    overlong_penalty: Annotated[_Number, Field(gt=0)] = 1.0
    """By how much the reward of a response of the full length sinks."""


class Facts(NamedTuple):
    """What the rules look at."""

    config: DictConfig
    """verl's, whole."""
    given: Mapping[str, Any]
    """What the user set of it, by dotted key."""
    own: Own
    """Our own keys."""

    def value(self, key: str) -> Any:
        """Return what a key of either has; None where there is none."""
        if key.startswith(f"{PREFIX}."):
            return getattr(self.own, key.removeprefix(f"{PREFIX}."))
        value = OmegaConf.select(self.config, key)
        return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value

    @property
    def estimator(self) -> str:
        return str(self.config.algorithm.adv_estimator)

    @property
    def is_loss_by_rollout(self) -> bool:
        """Whether rollouts weigh the same in the loss."""
        return self.given.get(f"{ACTOR}.loss_agg_mode") in (None, ROLLOUT_LOSS)


_AGENT = "the agent gives the reward, and has tools of its own"
_DATASETS = "samples are those of the datasets that the run is given"
_RUNNERS = "the trainer's runners run the agent: n_runners, strategy"
_OLDER = "verl's newer trainer, which runs here, does not look at it"

TOOL_FORMAT = f"{ROLLOUT}.multi_turn.format"
"""How a model writes calls of tools: the one option of verl's turns that has an effect here."""

_WITHOUT_EFFECT = {
    **dict.fromkeys(("custom_reward_function", "reward", "reward_model", "sandbox_fusion"), _AGENT),
    **dict.fromkeys((*keys("data", "tool_config_path function_tool_path"), f"{ROLLOUT}.multi_turn"), _AGENT),
    **dict.fromkeys(keys("data", "custom_cls val_max_samples"), _DATASETS),
    **dict.fromkeys(keys(ROLLOUT, "agent.default_agent_loop agent.agent_loop_config_path"), _RUNNERS),
    **dict.fromkeys(keys("algorithm", "pf_ppo use_pf_ppo"), _OLDER),
    "algorithm.filter_groups.max_num_gen_batches": "set max_inflight_gen_batches beside it",
    "data.image_base_dir": "the folder of the samples' images in agentlightning 0.3; models are trained on text alone",
    "data.tokenizer": f"set {MODEL}.tokenizer_path",
    "trainer.resume_from_path": "a run goes on from the newest checkpoint of its own",
    f"{ROLLOUT}.do_sample": f"what is learned from is drawn at {ROLLOUT}.temperature",
}
"""By key, or what keys are under, why it is refused: it would not be used."""

_UNUSED = (
    "skip",
    *keys(ROLLOUT, "agent.num_workers moe_load_balance_metrics_interval over_sample_rate trace"),
    *keys(ROLLOUT, "checkpoint_engine n_gpus_per_node nnodes"),
    *keys("data", "audio_key image_key image_patch_size video_key mm_processor_kwargs return_multi_modal_inputs"),
    *keys("data", "filter_overlong_prompts filter_overlong_prompts_workers prompt_key reward_fn_key truncation"),
    *keys("data", "train_files val_files dataloader_num_workers trust_remote_code use_shm"),
    *keys("data", "return_full_prompt return_raw_chat return_raw_input_ids val_batch_size validation_shuffle"),
    *keys("trainer", "balance_batch esi_redundant_time log_val_generations ray_wait_register_center_timeout"),
    *keys("trainer", "use_v1 v1.separate_async validation_data_dir"),
)
"""Keys, or what keys are under, without effect here, which change nothing of what is learned: a warning names them."""

_REFUSED = {
    "trainer.del_local_ckpt_after_load": "what was learned would be gone if the run ended before its next checkpoint",
    "actor_rollout_ref.actor.checkpoint.async_save": "no run could go on from what verl does not write down as newest",
    "critic.checkpoint.async_save": "no run could go on from what verl does not write down as newest",
    "algorithm.rollout_correction.bypass_mode": "the loss needs the actor's own probabilities",
    "trainer.val_only": "agl eval measures a model",
    "distillation.enabled": "what the teacher says is collected by verl's own agents, not here",
    f"{ROLLOUT}.enable_rollout_routing_replay": "the rollouts do not record which experts have answered",
}
"""By key, why it cannot be true."""

_WITHOUT_DATA = ("remax", "gdpo", "optimal_token_baseline", "tir_optimal_token_baseline")


def faults_of_conflicts(facts: Facts, *, packaged: DictConfig) -> Iterator[str]:
    """Give what contradicts itself.

    Args:
        facts: What was set, and its consequences.
        packaged: verl's defaults: a key with the same value counts as not set.
    """
    for key in facts.given:
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
        *(key for key in given if _is_under(key, unused) and _says_something(given, key, packaged)),
        *(f"{PREFIX}.trace_aggregator.{name}" for name in sorted(limits) if rows.level == "transition"),
    ]


def _is_under(key: str, names: tuple[str, ...]) -> bool:
    return f"{key}.".startswith(tuple(f"{name}." for name in names))


def _says_something(given: Mapping[str, Any], key: str, packaged: DictConfig) -> bool:
    value, default = given.get(key), OmegaConf.select(packaged, key, throw_on_resolution_failure=False)
    return value not in (None, "", default) and (value is not False or default is True)


def _of_samples(facts: Facts) -> Iterator[tuple[str, str]]:
    """Rules 2 to 4."""
    options, estimator = facts.own, facts.estimator
    if estimator in _WITHOUT_DATA:
        yield "algorithm.adv_estimator", "it needs what rollouts do not collect; use grpo or rloo"
    if options.mask_truncated and estimator not in OWN_ESTIMATORS:
        yield (
            "agentlightning.mask_truncated",
            f"it leaves rows out, and {estimator} compares rows, so that their rewards would be missing; use "
            f"{', '.join(OWN_ESTIMATORS)}",
        )
    if facts.config.algorithm.use_kl_in_reward and estimator in ("grpo", "rloo"):
        yield (
            "algorithm.use_kl_in_reward",
            f"it changes rewards after {estimator} has compared them; set {ACTOR}.use_kl_loss=true instead",
        )
    if options.call_discount != 1.0 and estimator == "gae":
        yield "agentlightning.call_discount", "with gae, algorithm.gamma discounts by tokens"
    rows, limit = options.trace_aggregator, "trajectory_max_response_length"
    is_default = rows.level == "trajectory" and limit not in rows.model_fields_set
    if options.overlong_buffer and is_default and facts.config.data.max_response_length < getattr(rows, limit):
        yield (
            "agentlightning.overlong_buffer",
            "it counts from the limit of a whole trajectory, and not from data.max_response_length; set "
            f"agentlightning.trace_aggregator.{limit}, too",
        )


def _of_losses(facts: Facts) -> Iterator[tuple[str, str]]:
    """Rules 5 and 6."""
    loss = facts.value(POLICY_LOSS)
    if loss == "geo_mean" and facts.is_loss_by_rollout:
        yield POLICY_LOSS, f"it takes a mean of its own over each micro-batch; set {ACTOR}.loss_agg_mode to token-mean"
    if loss == "bypass_mode":
        yield POLICY_LOSS, "it does without the actor's own probabilities, which the loss needs here; leave it out"


def _of_servers(facts: Facts) -> Iterator[tuple[str, str]]:
    """Rule 7."""
    model, server = facts.config.actor_rollout_ref.model, facts.config.actor_rollout_ref.rollout.name
    engine = facts.config.actor_rollout_ref.actor.strategy
    if facts.config.model_engine != "dp":
        yield "model_engine", "models are trained with FSDP here; leave it out"
    for key in (f"{ACTOR}.strategy", "actor_rollout_ref.ref.strategy", "critic.strategy"):
        if facts.value(key) not in (None, "fsdp", "fsdp2"):
            yield key, "models are trained with FSDP here; set it to fsdp or fsdp2"
    if model.lora.rank > 0:
        yield f"{MODEL}.lora.rank", f"{engine} does not read it, and would train the whole model; set {MODEL}.lora_rank"
    if model.lora_adapter_path and model.lora_rank <= 0:
        yield f"{MODEL}.lora_adapter_path", f"verl reads it with {MODEL}.lora_rank only; set that to its rank"
    if has_lora(facts.config) and server == "hf" and facts.given.get(f"{MODEL}.lora.merge") is False:
        yield f"{MODEL}.lora.merge", "rollout.name=hf takes whole weights, with the adapter in them; leave it out"
    if facts.value("trainer.v1.trainer_mode") == "separate_async":
        yield "trainer.v1.trainer_mode", "this mode of verl's was never tried here; set sync or colocate_async"


def _of_checkpoints_and_groups(facts: Facts) -> Iterator[tuple[str, str]]:
    """Rules 8 and 9."""
    trainer, groups = facts.config.trainer, facts.config.algorithm.filter_groups
    if trainer.resume_mode != "auto":
        yield (
            "trainer.resume_mode",
            "a run goes on from the newest checkpoint of its own, and a new run from none; to begin with what another "
            f"one has learned, set {MODEL}.path to the folder actor/huggingface of its checkpoint",
        )
    saved = "actor_rollout_ref.actor.checkpoint.save_contents"
    if trainer.save_freq > 0 and "model" not in facts.value(saved):
        yield saved, "no run can go on from that, and no adapter is written; add model"
    yield from ((key, f"{why}; leave it out") for key, why in _REFUSED.items() if facts.value(key))
    if groups.enable and groups.metric != "reward":
        yield "algorithm.filter_groups.metric", "groups are compared by the rewards that agents give; set it to reward"


def faults_of_data(
    config: DictConfig, learning: LearningOptions, *, n_train: int, n_val: int | None, n_test: int | None
) -> Iterator[str]:
    """Give what does not fit the datasets or the model, and would come out late or not at all.

    Args:
        config: verl's, whole.
        learning: How it is learned.
        n_train: How many samples there are to train on.
        n_val: How many there are to validate on; None for no validation.
        n_test: How many held-out ones there are; None for no test.
    """
    rollout, actor, batch = (
        config.actor_rollout_ref.rollout,
        config.actor_rollout_ref.actor,
        config.data.train_batch_size,
    )
    if n_train < batch:
        yield (
            f"data.train_batch_size is {batch}, and the training dataset has {n_train} samples, less than one batch; "
            "set it to what there is, or less"
        )
    for name, size in (("validation", n_val), ("test", n_test)):
        if size == 0:
            yield f"the {name} dataset is empty; leave it out, or give it samples"
    if rollout.n < learning.min_rewards:
        yield (
            f"actor_rollout_ref.rollout.n is {rollout.n}; {learning.estimator} compares the rollouts of one task, so "
            "it has to be 2 or more"
        )
    for name in ("actor_rollout_ref.actor", *(("critic",) if learning.estimator == "gae" else ())):
        if batch % (size := OmegaConf.select(config, f"{name}.ppo_mini_batch_size")):
            yield (
                f"data.train_batch_size is {batch}, which is not a multiple of {name}.ppo_mini_batch_size, {size}; set "
                "it to a divisor, or leave it out"
            )
    longest = learning.max_prompt_length + learning.max_response_length
    room = actor.ppo_max_token_len_per_gpu * actor.get("ulysses_sequence_parallel_size", 1)
    if actor.use_dynamic_bsz and room < longest:  # verl would end at the first row that is so long
        yield (
            f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu has room for {room} tokens, and a row may have "
            f"{longest} (prompt and response); set it to {longest} or more, or leave it out"
        )


def fault_of_positions(told: Mapping[str, Any], path: str) -> str | None:
    """Return why a model cannot be trained: it sees images, and its tokens have several positions each (M-RoPE).

    Args:
        told: What its `config.json` has.
        path: `actor_rollout_ref.model.path`, to name it by.
    """
    if not (_has(told, "vision_config") and _has(told, "mrope_section")):
        return None
    return (
        f"actor_rollout_ref.model.path is {path!r}, a model of images ({told.get('model_type')}) that places each "
        "token in several dimensions (mrope_section in its config.json), and rows of training have one; take a model "
        "of text alone"
    )


def _has(fields: Mapping[str, Any], name: str) -> bool:
    return name in fields or any(_has(part, name) for part in fields.values() if isinstance(part, Mapping))


def longest_conversation(config: DictConfig, told: Mapping[str, Any], *, row: int) -> int:
    """Return how many tokens a conversation may have.

    Args:
        config: verl's, whole.
        told: What the model's `config.json` has; nothing where it is not known yet.
        row: How many a row may have; it is less where the model has no more, or `rollout.max_model_len` says so.
    """
    overrides = config.actor_rollout_ref.model.override_config
    changed = context_length(overrides.get("model_config", overrides))  # either is where verl looks
    return int(config.actor_rollout_ref.rollout.max_model_len or min(row, changed or context_length(told) or row))


def set_context_of_servers(config: DictConfig, told: Mapping[str, Any], *, row: int) -> None:
    """Have vLLM plan memory for the longest conversation: for a model's whole context there may be too little.

    Args:
        config: verl's, whole; it is changed.
        told: As for `longest_conversation`.
        row: The same.
    """
    if config.actor_rollout_ref.rollout.name == "vllm" and told:
        with open_dict(config):
            config.actor_rollout_ref.rollout.max_model_len = longest_conversation(config, told, row=row)


def has_lora(config: DictConfig) -> bool:
    """Whether an adapter is trained, and not the whole model."""
    return bool(config.actor_rollout_ref.model.lora_rank > 0)


def servable_folder(config: DictConfig) -> str | None:
    """Return the folder in each checkpoint that vLLM loads, of a model or of an adapter; None where there is none.

    Args:
        config: verl's.
    """
    contents = config.actor_rollout_ref.actor.checkpoint.save_contents
    if has_lora(config):
        return f"actor/{ADAPTER}" if "model" in contents else None
    return "actor/huggingface" if "hf_model" in contents else None
