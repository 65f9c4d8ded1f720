"""The model that is trained: it samples, says how likely tokens are, and is saved and restored."""

import math
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning_tokens.batcher import Sampling
from lightning_tokens.engine import Generated
from lightning_tokens.generator import Generator
from lightning_tokens.learning.groups import LearnedRow
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from lightning_core.errors import AlgorithmError, ConfigError

_WEIGHT_DECAY = 0.01
"""As verl has it."""


def find_device() -> str:
    """Return where this machine computes fastest: `cuda`, `mps` or `cpu`."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


class Policy:
    """A causal language model of transformers, its optimizer, and the lock that lets one thread use it at a time.

    On CUDA it computes in bf16: whole weights are kept in 32 bits under autocast, so that small updates count; with
    LoRA the frozen weights are bf16, too. Elsewhere everything is in 32 bits. The model stays in evaluation mode, so
    that dropout does not make tokens less likely in training than they were in sampling.

    Args:
        path: The model and its tokenizer: a folder, or a name on the Hugging Face hub.
        device: Where it computes, as torch names it.
        lora: The rank of the adapter that is trained; 0 for the whole model.
        learning_rate: AdamW's.
        needs_reference: Whether `reference_logprobs` is used.
        seed: Where sampling, and an adapter, begin.
        bf16: Whether to compute in bf16; None for what the device does.

    Raises:
        ConfigError: When the model cannot be trained here; says why.
    """

    def __init__(
        self,
        path: str,
        *,
        device: str,
        lora: int = 0,
        learning_rate: float,
        needs_reference: bool = False,
        seed: int = 0,
        bf16: bool | None = None,
    ) -> None:
        self.device = torch.device(device)
        self.is_bf16 = self.device.type == "cuda" if bf16 is None else bf16
        """Whether it computes in bf16."""
        self.lock = threading.RLock()
        """Held by the thread that uses the model."""
        self.version = self._begun = 0
        """How many steps it has learned from."""
        config = AutoConfig.from_pretrained(path)
        if hasattr(config, "vision_config"):
            raise ConfigError(f"model is {path!r}, a model of images; grpo trains text alone")
        self.tokenizer: Any = AutoTokenizer.from_pretrained(path)
        if len(self.tokenizer) <= len(self.tokenizer.all_special_tokens):  # what transformers makes of no file
            raise ConfigError(f"model is {path!r}, where there is no tokenizer; save the model's own there, too")
        if not self.tokenizer.chat_template:
            raise ConfigError(
                f"model is {path!r}, which has no chat template to make prompts of messages with; take its instruct "
                "version, or save a tokenizer there whose chat_template is set"
            )
        self._config, self._dtype = config, config.dtype or torch.float32
        torch.manual_seed(seed)
        self.model: Any = self._load(path, frozen=lora > 0)
        self._generation_config = self.model.generation_config
        self.has_lora = lora > 0
        if lora:
            self.model = _with_adapter(self.model, lora)
        self._reference = self._load(path, frozen=True) if needs_reference and not lora else None
        logging.disable_progress_bar()  # there would be one for each time that it is saved
        self.generator = Generator(self.model, self.tokenizer, seed=seed)
        self.pad = self.tokenizer.pad_token_id or 0
        self.trained = {name: each for name, each in self.model.named_parameters() if each.requires_grad}
        self.optimizer = torch.optim.AdamW(self.trained.values(), lr=learning_rate, weight_decay=_WEIGHT_DECAY)

    # Sampling, as the batcher asks for it

    @property
    def context(self) -> int:
        """How many tokens a prompt and its answer may have together."""
        return self.generator.context

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        *,
        is_aborted: Callable[[int], bool] = lambda _: False,
    ) -> list[Generated]:
        """Continue each prompt; see `Generator.generate`."""
        with self.lock, self._autocast():
            return self.generator.generate(prompts, sampling, is_aborted=is_aborted)

    # Learning

    def logprobs(self, rows: Sequence[LearnedRow]) -> list[torch.Tensor]:
        """Return the log-probability of each token of each row's response: float32 [response_len], with gradients."""
        with self.lock:
            return self._logprobs(self.model, rows)

    def reference_logprobs(self, rows: Sequence[LearnedRow]) -> list[torch.Tensor]:
        """Return what `logprobs` was before the training, without gradients."""
        with self.lock, torch.no_grad():
            if self._reference is not None:
                return self._logprobs(self._reference, rows)
            with self.model.disable_adapter():
                return self._logprobs(self.model, rows)

    def _logprobs(self, model: Any, rows: Sequence[LearnedRow]) -> list[torch.Tensor]:
        sequences = [[*row.prompt_ids, *row.response_ids] for row in rows]
        width = max(map(len, sequences))
        ids = torch.tensor([each + [self.pad] * (width - len(each)) for each in sequences], device=self.device)
        mask = torch.tensor([[1] * len(each) + [0] * (width - len(each)) for each in sequences], device=self.device)
        first = min(len(row.prompt_ids) for row in rows) - 1  # what says how likely the first token of a response is
        with self._autocast():
            logits = model(input_ids=ids, attention_mask=mask, logits_to_keep=width - first, use_cache=False).logits
        logprobs = []
        for row, row_logits, tokens in zip(rows, logits, ids, strict=True):
            begin, end = len(row.prompt_ids), len(row.prompt_ids) + len(row.response_ids)
            scores = row_logits[begin - 1 - first : end - 1 - first].float()
            sampled = scores.gather(-1, tokens[begin:end].unsqueeze(-1)).squeeze(-1)
            logprobs.append(sampled - scores.logsumexp(-1))
        return logprobs

    def update(self, loss: float, *, max_norm: float = 1.0) -> float:
        """Take a step of the optimizer with the gradients that there are; return their norm before it was clipped.

        Raises:
            AlgorithmError: When the loss or the norm is not finite; the weights stay as they are.
        """
        norm = float(torch.nn.utils.clip_grad_norm_(self.trained.values(), max_norm))
        if not math.isfinite(loss + norm):
            raise AlgorithmError(f"the loss is {loss}, its gradient has the norm {norm}; try a smaller learning_rate")
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm

    def begin(self, version: int, begun: int | None = None) -> None:
        """Say how many steps it has learned from, and how many rollouts a run had when it was taken up: what it samples
        then depends on these, and on nothing before.
        """
        self.version, self._begun = version, self._begun if begun is None else begun
        self.generator.begin(version, self._begun)

    def rest(self) -> None:
        """Return when no other thread uses it."""
        with self.lock:
            pass

    # Folders and files, each whole or not there

    def save(self, folder: Path) -> None:
        """Save it in Hugging Face's form, in the precision that it came in; with LoRA, the adapter in PEFT's."""
        new = folder.with_name(f"{folder.name}.new")
        shutil.rmtree(new, ignore_errors=True)
        with self.lock, _writing(new):
            if self.has_lora:
                self.model.save_pretrained(new)
            else:
                weights = {name: each.to(self._dtype) for name, each in self.model.state_dict().items()}
                self.model.save_pretrained(new, state_dict=weights)
                self._config.save_pretrained(new)  # transformers has written the precision of training into its own
                self._generation_config.save_pretrained(new)
            self.tokenizer.save_pretrained(new)
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)

    def load(self, folder: Path, version: int) -> None:
        """Take the weights that `save` has written after so many steps."""
        with self.lock:
            if self.has_lora:
                from peft import load_peft_weights, set_peft_model_state_dict

                set_peft_model_state_dict(self.model, load_peft_weights(str(folder), device=str(self.device)))
            else:
                saved = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
                self.generator.take(saved.state_dict())
            self.begin(version)

    def save_state(self, file: Path, **more: Any) -> None:
        """Save what a training goes on from: trained weights in full precision, optimizer, step; and some numbers."""
        new = file.with_name(f"{file.name}.new")
        with self.lock, _writing(new):
            weights = {name: each.detach() for name, each in self.trained.items()}
            state = {"weights": weights, "optimizer": self.optimizer.state_dict(), "version": self.version, **more}
            torch.save(state, new)
        os.replace(new, file)

    def load_state(self, file: Path) -> dict[str, Any]:
        """Take what `save_state` has saved, and return it."""
        state: dict[str, Any] = torch.load(file, map_location=self.device, weights_only=True)
        with torch.no_grad():
            for name, each in self.trained.items():
                each.copy_(state["weights"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.begin(state["version"])
        return state

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.is_bf16)

    def _load(self, path: str, *, frozen: bool) -> Any:
        dtype = torch.bfloat16 if frozen and self.is_bf16 else torch.float32
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="sdpa")
        return model.to(self.device).eval().requires_grad_(not frozen)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Say what was written, and the room that there is, where it fails: torch's own error has neither."""
    try:
        yield
    except Exception as exc:  # torch and safetensors have their own
        free = shutil.disk_usage(path.parent).free / 2**20
        raise OSError(
            f"{path} cannot be written ({exc}); {free:,.0f} MiB are free there. Free some, and go on with agl resume"
        ) from exc


def _with_adapter(model: Any, rank: int) -> Any:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(model, config).eval()
