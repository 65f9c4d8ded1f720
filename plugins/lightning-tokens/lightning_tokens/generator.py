"""A model that continues prompts in batches, and says how likely each token was."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LogitsProcessor, StoppingCriteria

from lightning_tokens.batcher import Sampling
from lightning_tokens.engine import Generated, context_length

_SEEDS = 1_000_003
"""How far apart the seeds of two versions are: farther than those of replicas."""


class Generator:
    """A causal language model of transformers, in evaluation mode while it generates.

    Not for several threads at once.

    Args:
        model: The model, on its device.
        tokenizer: Its tokenizer.
        seed: Where sampling begins.
    """

    def __init__(self, model: Any, tokenizer: Any, *, seed: int = 0) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self._ends = end_tokens(tokenizer, model.generation_config)
        # What the model's author likes, as a penalty of repetitions, would change what is drawn and not its likelihood.
        self.model.generation_config = GenerationConfig()
        pad = tokenizer.pad_token_id
        self._pad = next(iter(sorted(self._ends)), 0) if pad is None else pad
        self._context = context_length(model.config.to_dict()) or 1_000_000
        self._seed = seed
        torch.manual_seed(seed)

    @classmethod
    def load(
        cls,
        path: str,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        seed: int = 0,
        trust_remote_code: bool = False,
    ) -> "Generator":
        """Load a model and its tokenizer.

        Args:
            path: Where they are.
            device: Where it computes, such as `cpu` or `cuda`.
            dtype: What it computes with, by torch's name of it.
            seed: Where sampling begins.
            trust_remote_code: Whether code that comes with the model may run.
        """
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code
        )
        return cls(model.to(device), tokenizer, seed=seed)

    @property
    def context(self) -> int:
        """How many tokens a prompt and its answer may have together."""
        return self._context

    def take(self, weights: Mapping[str, torch.Tensor], version: int | None = None) -> None:
        """Take other weights, and sample from a new beginning, which is the same for the same version.

        Raises:
            RuntimeError: When one is missing, unknown or of another shape.
        """
        missing, unknown = self.model.load_state_dict(weights, strict=False)
        tied = set(getattr(self.model, "_tied_weights_keys", None) or ()) if _is_tied(self.model) else set()
        missing = [name for name in missing if name not in tied]
        if missing or unknown:
            raise RuntimeError(f"the actor's weights are not the model's: missing {missing}, unknown {unknown}")
        if tied:
            self.model.tie_weights()
        self.begin(version)

    def begin(self, version: int | None, more: int = 0) -> None:
        """Sample from a new beginning, which is the same for the same version of the weights, and the same `more`."""
        torch.manual_seed(self._seed + _SEEDS * (version or 0) + more)

    def fingerprint(self) -> str:
        """Return a digest of the weights: the same for the same ones."""
        digest = hashlib.sha256()
        for name, weight in sorted(self.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        *,
        is_aborted: Callable[[int], bool] = lambda _: False,
    ) -> list[Generated]:
        """Continue each prompt.

        Args:
            prompts: Of any lengths.
            sampling: For all of them.
            is_aborted: Is asked before each token, of each prompt by its number; whether to end with what there is.
        """
        width = max(map(len, prompts))
        ids = torch.tensor([[self._pad] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        options: dict[str, Any] = {"do_sample": sampling.temperature > 0}
        if sampling.temperature > 0:
            options |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
        if sampling.stop:
            options |= {"stop_strings": list(sampling.stop), "tokenizer": self.tokenizer}
        ends = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else self._ends)}
        likelihoods = _Likelihoods(sampling.temperature or 1.0)
        self.model.eval()
        with torch.no_grad():
            sequences = self.model.generate(
                input_ids=ids.to(self.model.device),
                attention_mask=mask.to(self.model.device),
                max_new_tokens=sampling.max_tokens,
                eos_token_id=sorted(ends) or None,
                pad_token_id=self._pad,
                logits_processor=[likelihoods],
                stopping_criteria=[_Abort(is_aborted)],
                **options,
            )
        logprobs = likelihoods.of(sequences)
        return [
            self._cut(tokens, each, ends, sampling)
            for tokens, each in zip(sequences[:, width:].tolist(), logprobs.tolist(), strict=True)
        ]

    def _cut(self, tokens: list[int], logprobs: list[float], ends: set[int], sampling: Sampling) -> Generated:
        """Take off what the batch's longest answer has put behind this one, and say why this one ended."""
        length = next((place + 1 for place, token in enumerate(tokens) if token in ends), None)
        if sampling.stop:
            stopped = self._stop(tokens[:length], sampling.stop)
            length = length if stopped is None else stopped
        if length is not None:
            return Generated(tokens[:length], logprobs[:length], "stop")
        return Generated(tokens, logprobs, "length" if len(tokens) >= sampling.max_tokens else "abort")

    def _stop(self, tokens: list[int], stops: Sequence[str]) -> int | None:
        for end in range(1, len(tokens) + 1):
            text = self.tokenizer.decode(tokens[:end], skip_special_tokens=True)
            if any(stop in text for stop in stops):
                return end
        return None


class _Likelihoods(LogitsProcessor):  # type: ignore[misc]
    """Records how likely each token was, and changes nothing.

    It is given the logits of a place before its token is drawn, so it keeps those of one place, and not of all.

    Args:
        temperature: That of sampling.
    """

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature
        self._logits: torch.Tensor | None = None
        self._logprobs: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._take(input_ids)
        self._logits = scores
        return scores

    def of(self, sequences: torch.Tensor) -> torch.Tensor:
        """Return the log-probability of each token that was sampled: float32 [batch, sampled]."""
        self._take(sequences)
        return torch.stack(self._logprobs, dim=1)

    def _take(self, ids: torch.Tensor) -> None:
        if self._logits is None:
            return
        logprobs = torch.log_softmax(self._logits.float() / self._temperature, dim=-1)
        self._logprobs.append(logprobs.gather(-1, ids[:, -1:]).squeeze(-1))
        self._logits = None


class _Abort(StoppingCriteria):  # type: ignore[misc]
    def __init__(self, is_aborted: Callable[[int], bool]) -> None:
        self._is_aborted = is_aborted

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        aborted = [self._is_aborted(number) for number in range(input_ids.shape[0])]
        return torch.tensor(aborted, device=input_ids.device, dtype=torch.bool)


def end_tokens(tokenizer: Any, generation_config: Any) -> set[int]:
    """Return the tokens that end an answer: the tokenizer's, and those that the model's author names.

    Args:
        tokenizer: The model's.
        generation_config: transformers', as it comes with the model; None where it has none.
    """
    named = getattr(generation_config, "eos_token_id", None)
    tokens = {tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])}
    return {token for token in tokens if token is not None}


def _is_tied(model: Any) -> bool:
    return bool(getattr(model.config, "tie_word_embeddings", False))
