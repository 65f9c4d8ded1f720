"""The algorithms `grpo` and `rloo`: their options, and what is checked before a training."""

import asyncio
import hashlib
import importlib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lightning_tokens.learning.serving import check_parts, checkpoints_of
from pydantic import NonNegativeInt, PositiveInt

from lightning_core.algorithm import Algorithm
from lightning_core.algorithm.batch import continued
from lightning_core.errors import ConfigError
from lightning_core.registry import check_options
from lightning_core.types import Dataset, RolloutMode, samples_of
from lightning_grpo.options import Advantage, Loss, NonNegative, Positive, TrainingOptions, clip_range, learning_options

if TYPE_CHECKING:
    from lightning_grpo.policy import Policy


class GRPO(Algorithm):
    """Trains the weights of the model that an agent calls, in this process, with torch and transformers.

    The agent is given the model as the resource `main_llm`; what it calls goes through the model proxy: the trainer's,
    or one that this algorithm starts on this machine. The best resources that it reports are those with the best model
    by validation, else the newest: `main_llm.model` is its folder.

    Where the store is durable, a run that was killed goes on from its last checkpoint, and rollouts that had ended are
    not run again.

    Args:
        model: A folder, or a name on the Hugging Face hub.
        steps: How often the model learns from a batch.
        batch_size: The tasks of a step.
        group_size: How often each is run; these rollouts are compared with each other.
        learning_rate: AdamW's; None for 1e-6, and with LoRA 1e-5.
        updates: How often the weights change in a step: mini-batches of whole rollouts.
        advantage: `grpo`, `dr_grpo` (without the standard deviation) or `rloo`.
        loss: `rollout` (each weighs the same), `token` (each token does: DAPO's) or `constant` (Dr. GRPO's).
        clip: How far the ratio may go from 1: a number, or two, below and above.
        kl: The weight of the divergence from the model that the training began with.
        lora: The rank of an adapter to train in place of the whole model; 0 for none.
        max_tokens: Of a conversation, its prompt included.
        validate_every: After so many steps it is validated, and a checkpoint is written.
        seed: Of the order of the tasks, of sampling, and of an adapter.
        device: Where to compute, as torch names it; None for CUDA, MPS or the processor, the first that is there.
        generator: What samples: `module` for the model that is trained, or the URL of a vLLM server.
        learning: Further options of what is learned: `credit`, `call_discount`, `reward_weights`, `on_failure`,
            `mask_truncated`, `overlong_buffer`, `overlong_penalty`, `level`.

    Raises:
        ConfigError: Names what is wrong, and what would fit.
    """

    measures_held_out = True
    end_seconds = 120.0
    _advantage: ClassVar[Advantage] = "grpo"

    def __init__(
        self,
        model: str = "",
        *,
        steps: PositiveInt = 100,
        batch_size: PositiveInt = 8,
        group_size: PositiveInt = 8,
        learning_rate: Positive | None = None,
        updates: PositiveInt = 1,
        advantage: Advantage | None = None,
        loss: Loss = "rollout",
        clip: float | list[float] = 0.2,
        kl: NonNegative = 0.0,
        lora: NonNegativeInt = 0,
        max_tokens: PositiveInt = 2048,
        validate_every: PositiveInt = 10,
        seed: NonNegativeInt = 0,
        device: str | None = None,
        generator: str = "module",
        learning: Mapping[str, Any] | None = None,
    ) -> None:
        given = {each: value for each, value in locals().items() if each not in ("self", "__class__")}
        name = type(self).__name__.lower()
        check_options(name, given, type(self))
        if not model:
            raise ConfigError(f"{name} needs the option 'model': a folder, or a name on the Hugging Face hub")
        if advantage is not None and self._advantage == "rloo" != advantage:
            raise ConfigError(f"advantage is {advantage!r}, and rloo's is 'rloo'; name grpo, or leave it out")
        if group_size < 2:
            raise ConfigError("group_size is 1; the rollouts of a task are compared with each other, so take 2 or more")
        if updates > batch_size * group_size:
            raise ConfigError(f"updates is {updates}, and a step has {batch_size * group_size} rollouts; take fewer")
        if generator != "module" and not generator.startswith(("http://", "https://")):
            raise ConfigError(
                f"generator is {generator!r}; it is 'module', or the URL of a vLLM server, such as http://127.0.0.1:8000"
            )
        local = Path(model).expanduser()
        if not local.is_dir() and model[:1] in "/.~":
            raise ConfigError(f"model is {model!r}, and there is no such folder; name one, or a model of the hub")
        advantage = advantage or self._advantage
        checked = {
            "model": str(local.absolute()) if local.is_dir() else model,
            "learning_rate": learning_rate or (1e-5 if lora else 1e-6),
            "advantage": advantage,
            "clip": clip_range(clip),
            "learning": learning_options(advantage, max_tokens, learning),
        }
        self.options = TrainingOptions(**{**given, **checked})
        elsewhere = ("steps", "device", "generator")  # the same training, longer, or in another place
        text = name + repr(sorted((each, repr(value)) for each, value in given.items() if each not in elsewhere))
        self._digest = hashlib.sha256(text.encode()).hexdigest()[:16]

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Train.

        Raises:
            ConfigError: When a path, the proxy or the data do not fit; before the first rollout.
            NoRewards: When no rollout of a step, or of a measurement, gave a reward; says the first cause.
            AlgorithmError: When nothing can be learned from a step, although there are rewards.
        """
        data: dict[RolloutMode, list[Any]] = {
            "train": samples_of(train_dataset or ()),
            "val": samples_of(val_dataset or ()),
            "test": samples_of(self.get_test_dataset() or ()),
        }
        self._check(len(data["train"]))
        from lightning_tokens.learning.rollouts import cancel_unfinished

        await asyncio.to_thread(importlib.import_module, "lightning_grpo.training")  # torch takes seconds
        from lightning_grpo.training import Training

        await cancel_unfinished(self.get_store())  # before the model is loaded: runners would try them meanwhile
        work = {"options": self._digest, "train": len(data["train"]), "val": len(data["val"])}
        async with continued(self.get_store(), "grpo", of=work) as key:
            policy = await asyncio.to_thread(self._load)
            folder = checkpoints_of(self, key.rstrip("+"), otherwise=Path("checkpoints"))
            async with Training(self, policy, options=self.options, data=data, key=key, folder=folder) as training:
                await training.run()

    def _load(self) -> "Policy":
        from safetensors import SafetensorError

        from lightning_grpo.policy import Policy, find_device

        try:
            return Policy(
                self.options.model,
                device=self.options.device or find_device(),
                lora=self.options.lora,
                learning_rate=self.options.learning_rate,
                needs_reference=self.options.kl > 0,
                seed=self.options.seed,
            )
        except ConfigError:
            raise
        except (OSError, RuntimeError, ValueError, AssertionError, ImportError, SafetensorError) as exc:
            # There is no such model, device or memory, not all of the model, or a package that its tokenizer needs.
            raise ConfigError(
                f"model {self.options.model!r} cannot be loaded on {self.options.device or find_device()}: {exc}"
            ) from exc

    def _check(self, n_train: int) -> None:
        """Refuse what cannot work, before the model is loaded."""
        least = min(self.options.validate_every, self.options.steps) - 1
        keep = None if self._trainer is None else self.get_trainer().keep_spans
        if keep is not None and keep < least:
            raise ConfigError(
                f"keep_spans is {keep}; the steps since the last checkpoint are learned again after a kill, from their "
                f"spans: keep those of {least} or more, or make validate_every smaller"
            )
        if n_train < self.options.batch_size:
            raise ConfigError(
                f"batch_size is {self.options.batch_size}, and train_dataset has {n_train} tasks; give more, or a "
                "smaller one"
            )
        if self.options.lora and find_spec("peft") is None:
            raise ConfigError("lora needs peft, which is not installed: pip install peft")
        check_parts(self, self.options.model)


class RLOO(GRPO):
    """`GRPO` with the mean of the other rollouts of a group as the baseline."""

    _advantage = "rloo"
