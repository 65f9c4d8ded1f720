"""Whether a configuration fits its model and its data, before anything is started."""

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lightning_core.errors import ConfigError
from lightning_verl.config.context import context_length, fault_of_positions
from lightning_verl.config.own import PREFIX
from lightning_verl.config.settings import Settings, updates_per_step

logger = logging.getLogger(__name__)

_CONFIG = "config.json"
_TEMPLATES = ("chat_template.jinja", "chat_template.json")
_TOKENIZER = "tokenizer_config.json"


def check_settings(settings: Settings, *, n_train: int, n_val: int | None, n_test: int | None = None) -> None:
    """Check what can be known of a run before it starts; warn of a model whose context is less than a row.

    Args:
        settings: What `load_settings` gave.
        n_train: How many samples there are to train on.
        n_val: How many there are to validate on; None for no validation.
        n_test: How many held-out ones there are; None for no test.

    Raises:
        ConfigError: Says all that does not fit.
    """
    faults = [*_data(settings.verl, n_train, n_val, n_test), *_sizes(settings), *_model(settings)]
    if len(faults) == 1:
        raise ConfigError(faults[0])
    if faults:
        raise ConfigError("the configuration of verl does not fit:\n  " + "\n  ".join(faults))


def _data(config: DictConfig, n_train: int, n_val: int | None, n_test: int | None) -> Iterator[str]:
    batch, most = config.data.train_batch_size, config.data.get("train_max_samples", -1)
    if config.trainer.val_only and n_val is None:
        yield "trainer.val_only is true, and there is no validation dataset; give one"
    if 0 <= most < min(batch, n_train):
        yield f"data.train_max_samples is {most}, less than one batch: data.train_batch_size is {batch}"
    if n_train == 0:
        yield "the training dataset is empty"
    elif n_train < batch:
        yield (
            f"data.train_batch_size is {batch}, and the training dataset has {n_train} samples, less than one batch; "
            f"set it to {n_train} or less"
        )
    for name, size in (("validation", n_val), ("test", n_test)):
        if size == 0:
            yield f"the {name} dataset is empty; leave it out, or give it samples"


def _sizes(settings: Settings) -> Iterator[str]:
    config = settings.verl
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    batch, mini, n = config.data.train_batch_size, actor.ppo_mini_batch_size, rollout.n
    n_gpus = config.trainer.n_gpus_per_node * config.trainer.nnodes
    for name, size in (
        ("data.train_batch_size", batch),
        ("actor_rollout_ref.actor.ppo_mini_batch_size", mini),
        ("actor_rollout_ref.rollout.n", n),
        ("trainer.n_gpus_per_node", config.trainer.n_gpus_per_node),
        ("trainer.nnodes", config.trainer.nnodes),
        ("data.max_prompt_length", config.data.max_prompt_length),
        ("data.max_response_length", config.data.max_response_length),
    ):
        if size < 1:
            yield f"{name} is {size}; it has to be 1 or more"
            return
    if n < settings.learning.min_rewards:
        yield (
            f"actor_rollout_ref.rollout.n is {n}; {settings.learning.estimator} compares the rollouts of one task, so "
            "it has to be 2 or more"
        )
    if mini > batch or batch % mini:
        yield _indivisible("data.train_batch_size", batch, "actor_rollout_ref.actor.ppo_mini_batch_size", mini)
    generated = config.data.gen_batch_size
    if generated and batch % generated:
        yield _indivisible("data.train_batch_size", batch, "data.gen_batch_size", generated)
    if mini * n % n_gpus:
        yield (
            f"a mini-batch has {mini} * {n} = {mini * n} rollouts (actor_rollout_ref.actor.ppo_mini_batch_size * "
            f"actor_rollout_ref.rollout.n), which {n_gpus} workers (trainer.n_gpus_per_node * trainer.nnodes) cannot "
            "share evenly"
        )
    parallel = rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
    if n_gpus % parallel:
        yield _indivisible(
            "trainer.n_gpus_per_node * trainer.nnodes",
            n_gpus,
            "the parallel sizes of actor_rollout_ref.rollout",
            parallel,
        )
    mode = config.trainer.v1.trainer_mode
    steps = updates_per_step(config)
    if batch % steps:
        yield _indivisible("data.train_batch_size", batch, f"trainer.v1.{mode}.parameter_sync_step", steps)
    if mode == "separate_async":
        yield from _separate(config, mini * steps)
    longest = settings.learning.max_prompt_length + settings.learning.max_response_length
    if actor.use_dynamic_bsz:
        room = actor.ppo_max_token_len_per_gpu * actor.get("ulysses_sequence_parallel_size", 1)
        if room < longest:
            yield (
                f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu has room for {room} tokens, and a row may have "
                f"{longest} (prompt and response); set it to {longest} or more"
            )


def _separate(config: DictConfig, batch: int) -> Iterator[str]:
    rollout = config.actor_rollout_ref.rollout
    if config.data.train_batch_size != batch:
        yield (
            f"data.train_batch_size is {config.data.train_batch_size}; with separate_async it is "
            f"actor.ppo_mini_batch_size times trainer.v1.separate_async.parameter_sync_step, {batch}"
        )
    if rollout.nnodes < 1 or rollout.n_gpus_per_node < 1:
        yield (
            f"actor_rollout_ref.rollout has nnodes={rollout.nnodes} and n_gpus_per_node={rollout.n_gpus_per_node}; "
            "with separate_async they say what it generates on, 1 or more each"
        )
    if rollout.checkpoint_engine.backend == "naive":
        yield (
            "actor_rollout_ref.rollout.checkpoint_engine.backend is 'naive', which stays on one device; with "
            "separate_async it is nccl, or another of verl's that sends weights"
        )


def _indivisible(name: str, value: int, divisor_name: str, divisor: int) -> str:
    return f"{name} is {value}, which is not a multiple of {divisor_name}, {divisor}"


def _model(settings: Settings) -> Iterator[str]:
    model = settings.verl.actor_rollout_ref.model
    folder = _found("actor_rollout_ref.model.path", str(model.path))
    if isinstance(folder, str):
        yield folder
        return
    if folder is not None and not (folder / _CONFIG).is_file():
        yield f"actor_rollout_ref.model.path is {model.path!r}, a folder without a {_CONFIG}; it is not a model"
        return
    if folder is not None:
        if fault := fault_of_positions(_read(folder / _CONFIG), str(model.path)):
            yield fault
            return
        yield from _context(settings, folder)
    if model.tokenizer_path is not None:
        folder = _found("actor_rollout_ref.model.tokenizer_path", str(model.tokenizer_path))
        if isinstance(folder, str):
            yield folder
            return
    if folder is not None and model.custom_chat_template is None and not _has_chat_template(folder):
        yield (
            f"the tokenizer in {str(folder)!r} has no chat template, so it cannot be told what an agent says; take a "
            "model that was taught to chat, or set actor_rollout_ref.model.custom_chat_template"
        )


def _context(settings: Settings, folder: Path) -> Iterator[str]:
    """Compare rows with what the model can have before it: there a conversation ends, however long a row may be."""
    model, asked = settings.verl.actor_rollout_ref.model, settings.verl.actor_rollout_ref.rollout.max_model_len
    context = context_length(_read(folder / _CONFIG), model.override_config)
    if context is not None and asked is not None and asked > context:
        yield (
            f"actor_rollout_ref.rollout.max_model_len is {asked}, and the model can have {context} tokens before it; "
            f"set it to {context} or less, or leave it out"
        )
    limit = min((each for each in (context, asked) if each is not None), default=None)
    prompt, response = settings.learning.max_prompt_length, settings.learning.max_response_length
    is_trajectory = settings.learning.level == "trajectory"
    inside = f"{PREFIX}.trace_aggregator.trajectory_" if is_trajectory else "data."
    is_default = is_trajectory and "trajectory_max_prompt_length" not in settings.own.trace_aggregator.model_fields_set
    if limit is not None and prompt > limit and not is_default:
        whose = "actor_rollout_ref.rollout.max_model_len is" if limit == asked else "the model can have"
        yield (
            f"{inside}max_prompt_length is {prompt}, and {whose} {limit} tokens, prompt and answer together; set it to "
            f"less than {limit}"
        )
    elif context is not None and asked is None and prompt + response > context:
        logger.warning(
            "lightning_verl.context_is_short row=%d context=%d; %smax_prompt_length and max_response_length are more "
            "than the model can have before it, so conversations end there",
            prompt + response,
            context,
            inside,
        )


def _found(name: str, path: str) -> Path | str | None:
    """Return the folder of a model; None when it is elsewhere, and what is wrong when it is nowhere."""
    if "://" in path:
        return None
    folder = Path(path)
    if folder.is_dir():
        return folder
    parts = path.split("/")
    is_of_hub = len(parts) == 2 and all(parts) and parts[0] not in (".", "..") and path[0] != "~"
    if not is_of_hub:
        return f"{name} is {path!r}: there is no such folder, and it is no 'owner/name' of the Hugging Face hub"
    return _cached(name, path)


def _cached(name: str, repo: str) -> Path | str | None:
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(repo, "config.json")
    if isinstance(cached, str):
        return Path(cached).parent
    is_offline = any(
        os.environ.get(variable, "0") not in ("", "0") for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )
    if is_offline:
        return f"{name} is {repo!r}: there is no such folder, it was not downloaded before, and the hub is switched off"
    return None


def _has_chat_template(folder: Path) -> bool:
    if any((folder / name).is_file() for name in _TEMPLATES):
        return True
    path = folder / _TOKENIZER
    return path.exists() and bool(_read(path).get("chat_template"))


def _read(path: Path) -> dict[str, Any]:
    try:
        told: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ConfigError(f"cannot read {path}: {exc}") from exc
    if not isinstance(told, dict):
        raise ConfigError(f"{path} is not the configuration of a model: it has to be a JSON object")
    return told
