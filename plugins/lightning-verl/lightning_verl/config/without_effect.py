"""Options of verl for what another part does here: an error names that part."""

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lightning_verl.config.given import Given, Keys

_AGENT_GIVES_REWARD = "the agent gives the reward"
_AGENT_MAKES_PROMPTS = "the agent makes its prompts of a sample"
_AGENT_HAS_TOOLS = "the agent has tools of its own"
_AGENT_TAKES_TURNS = "the agent says how many turns it takes, and with which tools"
_GIVEN_DATASETS = "samples are those of the datasets that the run is given"
_NO_EXPERTS = "the rollouts do not record which experts have answered"
_OLDER_TRAINER = "verl's newer trainer, which runs here, does not look at it"
_PROMPTS_AS_THEY_ARE = "prompts are the agent's; a row of which one is too long is left out and counted"
_RUNNERS = "the trainer's runners run the agent: n_runners, strategy"
_STORE_HAS_THEM = "the store has every rollout: agl show"
_WHOLE_VALIDATION = "the whole validation dataset is run; give a shorter one"

_ROLLOUT = "actor_rollout_ref.rollout"

TOOL_FORMAT = f"{_ROLLOUT}.multi_turn.format"
"""How a model writes calls of tools: the one option of verl's turns that has an effect here."""

_WITHOUT_EFFECT = {
    "algorithm.filter_groups.max_num_gen_batches": "set max_inflight_gen_batches beside it",
    "algorithm.pf_ppo": _OLDER_TRAINER,
    "algorithm.use_pf_ppo": _OLDER_TRAINER,
    "custom_reward_function": _AGENT_GIVES_REWARD,
    "data.audio_key": _AGENT_MAKES_PROMPTS,
    "data.custom_cls": _GIVEN_DATASETS,
    "data.function_tool_path": _AGENT_HAS_TOOLS,
    "data.image_key": _AGENT_MAKES_PROMPTS,
    "data.image_patch_size": _AGENT_MAKES_PROMPTS,
    "data.mm_processor_kwargs": _AGENT_MAKES_PROMPTS,
    "data.prompt_key": _AGENT_MAKES_PROMPTS,
    "data.return_full_prompt": _AGENT_MAKES_PROMPTS,
    "data.return_multi_modal_inputs": _AGENT_MAKES_PROMPTS,
    "data.return_raw_chat": _AGENT_MAKES_PROMPTS,
    "data.return_raw_input_ids": _AGENT_MAKES_PROMPTS,
    "data.reward_fn_key": _AGENT_GIVES_REWARD,
    "data.tokenizer": "set actor_rollout_ref.model.tokenizer_path",
    "data.tool_config_path": _AGENT_HAS_TOOLS,
    "data.train_files": _GIVEN_DATASETS,
    "data.truncation": _PROMPTS_AS_THEY_ARE,
    "data.trust_remote_code": "set actor_rollout_ref.model.trust_remote_code",
    "data.val_files": _GIVEN_DATASETS,
    "data.val_max_samples": _WHOLE_VALIDATION,
    "data.video_key": _AGENT_MAKES_PROMPTS,
    "reward": _AGENT_GIVES_REWARD,
    "reward_model": _AGENT_GIVES_REWARD,
    "sandbox_fusion": _AGENT_GIVES_REWARD,
    "skip": "rollouts that have ended are in the store, and are not run again",
    "trainer.balance_batch": "mini-batches have whole rollouts, and are always balanced",
    "trainer.esi_redundant_time": _OLDER_TRAINER,
    "trainer.resume_from_path": "a run goes on from the newest checkpoint of its own",
    "trainer.use_v1": "it is always verl's newer trainer that runs here",
    f"{_ROLLOUT}.agent": _RUNNERS,
    f"{_ROLLOUT}.do_sample": f"what is learned from is drawn at {_ROLLOUT}.temperature",
    f"{_ROLLOUT}.multi_turn": _AGENT_TAKES_TURNS,
    f"{_ROLLOUT}.over_sample_rate": _OLDER_TRAINER,
    f"{_ROLLOUT}.trace": "the trainer's tracer records the rollouts",
}
"""By key, or what keys are under, why it is not used and what to do instead."""

_HARMLESS = {
    "data.dataloader_num_workers": "samples are read where rollouts are enqueued, in the process of the run",
    "data.filter_overlong_prompts": _PROMPTS_AS_THEY_ARE,
    "data.filter_overlong_prompts_workers": _PROMPTS_AS_THEY_ARE,
    "data.use_shm": _GIVEN_DATASETS,
    "data.val_batch_size": _WHOLE_VALIDATION,
    "data.validation_shuffle": _WHOLE_VALIDATION,
    "trainer.log_val_generations": _STORE_HAS_THEM,
    "trainer.ray_wait_register_center_timeout": _OLDER_TRAINER,
    "trainer.validation_data_dir": _STORE_HAS_THEM,
    f"{_ROLLOUT}.agent.num_workers": _RUNNERS,
    f"{_ROLLOUT}.moe_load_balance_metrics_interval": _NO_EXPERTS,
}
"""By key, the same, where what is learned does not depend on it: verl's own examples set some of them."""


def faults_of_effect(given: Given, defaults: DictConfig) -> Iterator[str]:
    """Give what somebody who sets it would miss.

    Args:
        given: What the user set of verl's.
        defaults: verl's own; what says the same as these is as good as not said.
    """
    for keys in _said(given, defaults):
        why = None if _why(keys, _HARMLESS) else _why(keys, _WITHOUT_EFFECT)
        if why is not None:
            yield f"{given.where(keys)}{'.'.join(keys)} has no effect: {why}; leave it out"


def harmless_options(given: Given, defaults: DictConfig) -> Iterator[str]:
    """Give the options without effect that what is learned does not depend on, and why they have none.

    Args:
        given: What the user set of verl's.
        defaults: verl's own, as for `faults_of_effect`.
    """
    for keys in _said(given, defaults):
        if (why := _why(keys, _HARMLESS)) is not None:
            yield f"{'.'.join(keys)} ({why})"


def why_without_effect(keys: Keys) -> str | None:
    """Return why an option is not used, and what to do instead; None for one that is."""
    return _why(keys, _HARMLESS) or _why(keys, _WITHOUT_EFFECT)


def _why(keys: Keys, table: Mapping[str, str]) -> str | None:
    name = ".".join(keys)
    if name == TOOL_FORMAT:
        return None
    return next((why for key, why in table.items() if f"{name}.".startswith(f"{key}.")), None)


def _said(given: Given, defaults: DictConfig) -> Iterator[Keys]:
    for keys, value in _leaves(given.values, ()):
        if value not in (None, "", _plain(OmegaConf.select(defaults, ".".join(keys)))):
            yield keys


def _leaves(values: Mapping[str, Any], inside: Keys) -> Iterator[tuple[Keys, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*inside, key))
        else:
            yield (*inside, key), value


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
