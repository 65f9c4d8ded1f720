"""Whether a configuration fits its model and its data, before anything is started; verl asserts its own sizes later."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from lightning_core.errors import ConfigError
from lightning_verl.config.context import fault_of_positions
from lightning_verl.config.settings import Settings


def check_settings(settings: Settings, *, n_train: int, n_val: int | None, n_test: int | None = None) -> None:
    """Check what can be known of a run before it starts, and would come out late or not at all.

    Args:
        settings: What `load_settings` gave.
        n_train: How many samples there are to train on.
        n_val: How many there are to validate on; None for no validation.
        n_test: How many held-out ones there are; None for no test.

    Raises:
        ConfigError: Says all that does not fit.
    """
    faults = [*_data(settings, n_train, n_val, n_test), *_sizes(settings), *_model(settings)]
    if len(faults) == 1:
        raise ConfigError(faults[0])
    if faults:
        raise ConfigError("the configuration of verl does not fit:\n  " + "\n  ".join(faults))


def _data(settings: Settings, n_train: int, n_val: int | None, n_test: int | None) -> Iterator[str]:
    config, batch = settings.verl, settings.verl.data.train_batch_size
    if config.trainer.val_only and n_val is None:
        yield "trainer.val_only is true, and there is no validation dataset; give one"
    if n_train < batch:
        yield (
            f"data.train_batch_size is {batch}, and the training dataset has {n_train} samples, less than one batch; "
            "set it to what there is, or less"
        )
    for name, size in (("validation", n_val), ("test", n_test)):
        if size == 0:
            yield f"the {name} dataset is empty; leave it out, or give it samples"


def _sizes(settings: Settings) -> Iterator[str]:
    rollout, actor = settings.verl.actor_rollout_ref.rollout, settings.verl.actor_rollout_ref.actor
    if rollout.n < settings.learning.min_rewards:
        yield (
            f"actor_rollout_ref.rollout.n is {rollout.n}; {settings.learning.estimator} compares the rollouts of one "
            "task, so it has to be 2 or more"
        )
    batch = settings.verl.data.train_batch_size
    for name in ("actor_rollout_ref.actor", *(("critic",) if settings.learning.estimator == "gae" else ())):
        size = OmegaConf.select(settings.verl, f"{name}.ppo_mini_batch_size")
        if batch % size:
            yield (
                f"data.train_batch_size is {batch}, which is not a multiple of {name}.ppo_mini_batch_size, {size}; set "
                "it to a divisor, or leave it out"
            )
    if settings.learning.overlong_buffer > settings.learning.max_response_length:
        yield (
            f"agentlightning.overlong_buffer is {settings.learning.overlong_buffer}, more than the "
            f"{settings.learning.max_response_length} tokens of the longest response, so that every one would lose "
            "reward; set it to less"
        )
    longest = settings.learning.max_prompt_length + settings.learning.max_response_length
    room = actor.ppo_max_token_len_per_gpu * actor.get("ulysses_sequence_parallel_size", 1)
    if actor.use_dynamic_bsz and room < longest:  # verl would end at the first row that is so long
        yield (
            f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu has room for {room} tokens, and a row may have "
            f"{longest} (prompt and response); set it to {longest} or more"
        )


def _model(settings: Settings) -> Iterator[str]:
    path = str(settings.verl.actor_rollout_ref.model.path)
    told = Path(path, "config.json")
    if told.is_file():
        if fault := fault_of_positions(_read(told), path):
            yield fault
    elif Path(path).is_dir():
        yield f"actor_rollout_ref.model.path is {path!r}, a folder without a config.json; it is not a model"
    elif "://" not in path and (path.count("/") != 1 or path[0] in "./~"):
        yield (
            f"actor_rollout_ref.model.path is {path!r}: there is no such folder, and it is no 'owner/name' of the "
            "Hugging Face hub"
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        told: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ConfigError(f"cannot read {path}: {exc}") from exc
    if not isinstance(told, dict):
        raise ConfigError(f"{path} is not the configuration of a model: it has to be a JSON object")
    return told
