"""A check of this machine that anyone can run: trains a tiny model that it makes, a line a training.

python -m lightning_verl.check --device cuda
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning_tokens.testing import letter_tasks, make_tiny_model, run_checks, say_letters

from lightning_core import LLM, Trainer, rollout
from lightning_verl.algorithm import VERL
from lightning_verl.config import count_gpus

TRAININGS: dict[str, list[str]] = {
    "grpo": [],
    "ppo": ["algorithm.adv_estimator=gae"],
    "lora": ["actor_rollout_ref.model.lora_rank=8"],
    "async": ["trainer.v1.trainer_mode=colocate_async"],
}
_LARGEST_DIFFERENCE = 0.01
"""Of the log-probabilities of sampling from the actor's, in the mean of a step, in bf16."""
_STEPS = 3


@rollout
def agent(task: dict[str, Any], llm: LLM) -> float:
    """Say the letter a."""
    return say_letters(task, llm, turns=1)


class Steps(list[Mapping[str, float | None]]):
    """What each step has measured."""

    def lightning_step_end(self, step: int, metrics: Mapping[str, float | None]) -> None:
        self.append(metrics)


def train(options: list[str], folder: Path) -> str:
    """Train; expect that everything is as it should be, and return what was measured."""
    steps = Steps()
    made = make_tiny_model(folder / "model", hidden_size=256)  # heads of 64, the smallest that vLLM has
    lengths = {f"trajectory_max_{side}_length": 64 for side in ("prompt", "response")}
    config = [
        *(f"agentlightning.trace_aggregator.{name}={length}" for name, length in lengths.items()),
        *(f"actor_rollout_ref.model.path={made}", "actor_rollout_ref.actor.optim.lr=1e-2", "trainer.n_gpus_per_node=1"),
        *("data.train_batch_size=8", "data.max_prompt_length=64", "data.max_response_length=32"),
        *("actor_rollout_ref.rollout.gpu_memory_utilization=0.3", f"trainer.total_training_steps={_STEPS}", *options),
    ]
    algorithm, limit = VERL(config, preset="grpo"), {"seconds": 600}
    trainer = Trainer(algorithm=algorithm, run_dir=folder / "runs", n_runners=16, hooks=[steps], budget=limit)
    result = trainer.fit(agent, letter_tasks(0, 8 * _STEPS))
    diffs = [each.get("training/rollout_logprobs_diff_mean") for each in steps]
    is_exact = len(diffs) == _STEPS and all(each is not None and each < _LARGEST_DIFFERENCE for each in diffs)
    text = f"{result.status}, log-prob differences {diffs}, reward by step {[s.get('training/reward') for s in steps]}"
    assert is_exact, text
    assert (result.status, result.rollouts.failed) == ("succeeded", 0), text
    return text


def stages_of(device: str) -> dict[str, Callable[[Path], str]]:
    """Return what is tried on a device, by name."""
    engines = ["hf", *(["vllm"] if device == "cuda" and find_spec("vllm") else [])]
    where = f"agentlightning.device={device}"
    return {
        f"{engine}-{name}": partial(train, [*options, where, f"actor_rollout_ref.rollout.name={engine}"])
        for engine in engines
        for name, options in TRAININGS.items()
    }


if __name__ == "__main__":
    default = "cuda" if count_gpus() else "cpu"
    sys.exit(run_checks("python -m lightning_verl.check", __doc__, stages_of, device=default))
