"""After which steps a checkpoint is written, how many are kept, and which one is gone on from."""

import logging
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lightning_core.budget import Budget, Limit

logger = logging.getLogger(__name__)

_FOLDER = re.compile(r"global_step_(\d+)")
_TRACKER = "latest_checkpointed_iteration.txt"
_REWARD = "validation_reward"
"""The file in a checkpoint that has what a validation measured of it."""
_LEAST_RATIO = 20
"""How many times as long as it took to write a checkpoint the next one is not written by time."""
_WRITTEN_LATE = "data.pt"
"""Of what each checkpoint has, written after all models."""


class Schedule:
    """Says after which steps a checkpoint is written, besides those after which verl writes one by itself.

    One is due when the last one is so long ago, and before a step that the budget would not last for, if that took as
    much of it as the step before.

    Args:
        seconds: How long ago; None where time does not count. It is longer where it takes long to write one: at most a
            twentieth of the time is spent on it.
        budget: What the run may use; None for no limit.
        clock: Returns seconds that never go back.
    """

    def __init__(
        self, seconds: float | None, *, budget: Budget | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds = seconds
        self._budget = budget
        self._clock = clock
        self._saved_at = 0.0
        self._took_seconds = 0.0
        self._used: dict[Limit, float] = {}

    def begin(self) -> None:
        """Say that the first step begins."""
        self._saved_at = self._clock()
        self._used = {} if self._budget is None else self._budget.used

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Have a checkpoint written during the block."""
        begun = self._clock()
        yield
        self._saved_at = self._clock()
        self._took_seconds = self._saved_at - begun

    def is_due(self) -> bool:
        """Whether one is to be written now. Asked once at the end of each step."""
        elapsed = self._clock() - self._saved_at
        is_time = self.seconds is not None and elapsed >= max(self.seconds, _LEAST_RATIO * self._took_seconds)
        return self._is_budget_short() or is_time

    def _is_budget_short(self) -> bool:
        if self._budget is None:
            return False
        before, self._used = self._used, self._budget.used
        return any(2 * self._used[name] - before.get(name, 0.0) >= limit for name, limit in self._budget.limits.items())


def note_reward(folder: Path, *, step: int, reward: float) -> None:
    """Record what a validation has measured of a model, in its checkpoint; nothing where that was not written.

    Args:
        folder: Where checkpoints are.
        step: After which the model was measured.
        reward: The mean.
    """
    if (saved := folder / f"global_step_{step}").is_dir():
        (saved / _REWARD).write_text(repr(reward))


def remove_older(folder: Path, *, newest: int, keep: Iterable[int | None] | None) -> None:
    """Remove the checkpoints in a folder but for the best one and the newest, or for the newest ones.

    verl does so with those of its own process, and leaves something of each; not with those from before a kill. What
    is numbered higher than the one just written is left of saves that were cut off: no run goes on from it.

    Args:
        folder: Where checkpoints are.
        newest: The step of the one just written.
        keep: None for the best by validation, and the newest. Or how many stay, by what each of the models wants: a
            checkpoint is of all of them, so the smallest number counts; None, and less than one, asks for all.
    """
    found = _found(folder)
    reachable = sorted(step for step in found if step <= newest)
    if keep is None:
        rewards = {step: float((found[step] / _REWARD).read_text()) for step in reachable if _is_noted(found[step])}
        kept = {newest, *sorted(rewards, key=lambda step: (rewards[step], step))[-1:]}
    else:
        n_kept = min((number for number in keep if number is not None and number > 0), default=None)
        if n_kept is None:
            return
        kept = set(reachable[-n_kept:])
    for step in found.keys() - kept:
        shutil.rmtree(found[step])


def bytes_of(config: DictConfig) -> int | None:
    """Return how much disk a checkpoint takes, about; None for other engines than FSDP, or a model that is not here.

    Of each parameter that is trained FSDP saves 4 bytes, and AdamW's 8, and of the model in Hugging Face's form 4.

    Args:
        config: verl's, whole.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    actor, model = config.actor_rollout_ref.actor, config.actor_rollout_ref.model
    if not str(actor.strategy).startswith("fsdp") or "://" in str(model.path):
        return None
    with torch.device("meta"):
        made: Any = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(model.path, trust_remote_code=model.trust_remote_code),
            trust_remote_code=model.trust_remote_code,
        )
        n_all = n_trained = made.num_parameters()
        if model.lora_rank > 0:
            from peft import LoraConfig, get_peft_model

            lora = LoraConfig(r=model.lora_rank, target_modules=model.target_modules, task_type="CAUSAL_LM")
            n_trained = get_peft_model(made, lora).num_parameters(only_trainable=True)
    contents = actor.checkpoint.save_contents
    n_saved = n_trained if actor.checkpoint.save_lora_only else n_all
    in_parts = 4 * n_saved * ("model" in contents) + 8 * n_trained * ("optimizer" in contents)
    whole = 4 * n_all * ("hf_model" in contents) + 4 * n_trained * (model.lora_rank > 0)
    return int(in_parts + whole + (12 * n_all if config.critic.enable else 0))


def say_disk(config: DictConfig, folder: Path, *, keeps_best: bool) -> None:
    """Say how much disk the checkpoints will take; a warning where that is more than a tenth of what is free.

    Args:
        config: verl's, whole.
        folder: Where they are written.
        keeps_best: Whether the best and the newest are kept.
    """
    if config.trainer.save_freq <= 0 or (size := bytes_of(config)) is None:
        return
    limits = [config.trainer.max_actor_ckpt_to_keep, config.trainer.max_critic_ckpt_to_keep]
    n_kept = 2 if keeps_best else min((each for each in limits if each), default=0)
    place = next(each for each in (folder, *folder.parents) if each.exists())
    free, most = shutil.disk_usage(place).free, size * (n_kept + 1)
    told = f"{n_kept} are kept, and one more while it is written: {most / 1e9:.2g} GB" if n_kept else "all are kept"
    logger.log(
        logging.WARNING if most * 10 > free else logging.INFO,
        "lightning_verl.checkpoints folder=%s each takes about %.2g GB; %s; %.2g GB are free",
        *(folder, size / 1e9, told, free / 1e9),
    )


def repair_tracker(folder: Path) -> None:
    """Name the newest checkpoint again where a kill or a full disk has left nothing of its name.

    verl writes it when all else of a checkpoint is there, and empties the file first: the whole one is the one that
    was written last, whatever its number.

    Args:
        folder: Where checkpoints are, if there are any.
    """
    tracker = folder / _TRACKER
    if not tracker.exists() or tracker.read_bytes().strip().isdigit():
        return
    written = {path / _WRITTEN_LATE: step for step, path in _found(folder).items() if (path / _WRITTEN_LATE).exists()}
    if not written:
        logger.warning("lightning_verl.no_checkpoint_left folder=%s", folder)
        tracker.unlink()
        return
    step = written[max(written, key=lambda path: path.stat().st_mtime_ns)]
    logger.warning("lightning_verl.newest_checkpoint_named_again folder=%s step=%d", folder, step)
    whole = tracker.with_suffix(".new")
    whole.write_text(str(step))
    whole.replace(tracker)


def _found(folder: Path) -> dict[int, Path]:
    return {int(match[1]): path for path in folder.iterdir() if (match := _FOLDER.fullmatch(path.name))}


def _is_noted(saved: Path) -> bool:
    return (saved / _REWARD).exists()
