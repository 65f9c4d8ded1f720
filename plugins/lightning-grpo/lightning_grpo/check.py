"""`python -m lightning_grpo.check --device cuda`: tries training on this machine, a line a stage.

It needs torch, transformers and the packages of this project, and no network; with peft it tries LoRA, too.
"""

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("TQDM_DISABLE", "1")  # there is a line for each stage

import torch
from lightning_tokens.testing import letter_tasks, make_tiny_model, run_checks, say_letters

from lightning_core import LLM, FitResult, Trainer, rollout
from lightning_grpo.algorithm import GRPO
from lightning_grpo.policy import find_device


@rollout
def letters(task: dict[str, Any], llm: LLM) -> float:
    """Say the letter a."""
    return say_letters(task, llm)


class Watched(GRPO):
    """Remembers how well log-probabilities agree."""

    def report(self, metrics: Mapping[str, float | None], **more: Any) -> None:
        super().report(metrics, **more)
        if more.get("step") is not None:
            self.differences = [*getattr(self, "differences", []), metrics["training/logprob_difference"] or 0.0]


def check_training(device: str, folder: Path) -> str:
    """Expect that a short training raises the reward of new tasks, and that log-probabilities agree."""
    result, agree = train(device, folder, steps=15)
    difference = None if result.comparison is None else result.comparison.difference
    assert difference is not None, f"the run has no comparison; it {result.status}"
    assert (difference.low or 0.0) > 0, f"the held-out reward did not rise for certain: {difference}"
    return f"held-out reward {difference}; {agree}"


def check_lora(device: str, folder: Path) -> str:
    """Expect that log-probabilities agree while an adapter learns."""
    if find_spec("peft") is None:
        return "not tried: peft is not installed"
    result, agree = train(device, folder, steps=4, lora=8)
    assert result.status == "succeeded", f"the run {result.status}"
    return agree


def train(device: str, folder: Path, *, steps: int, lora: int = 0) -> tuple[FitResult, str]:
    """Train; return the result, and by how much tokens were less or more likely in training than in sampling."""
    algorithm = Watched(
        model=str(make_tiny_model(folder / "model", hidden_size=128)),
        device=device,
        steps=steps,
        lora=lora,
        batch_size=8,
        group_size=8,
        learning_rate=1e-2,
        max_tokens=160,
    )
    trainer = Trainer(algorithm=algorithm, n_runners=32)
    result = trainer.fit(letters, letter_tasks(0, 64), test_dataset=letter_tasks(100, 132))
    most, limit = max(algorithm.differences), 0.01 if torch.device(device).type == "cuda" else 1e-4
    assert most <= limit, f"the log-probabilities differ by {most:.2g} in the mean of a step, more than {limit}"
    return result, f"log-probabilities differ by {most:.1e}"


def stages_of(device: str) -> dict[str, Callable[[Path], str]]:
    """Return what is tried on a device, by name."""
    return {"training": partial(check_training, device), "lora": partial(check_lora, device)}


if __name__ == "__main__":
    print(f"torch {torch.__version__}", flush=True)
    sys.exit(run_checks("python -m lightning_grpo.check", __doc__, stages_of, device=find_device()))
