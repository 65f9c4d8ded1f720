"""A check of this machine that anyone can run: trains a tiny model that it makes, a line a training.

python -m lightning_verl.check --device cuda
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning_tokens.testing import letter_tasks, make_tiny_model, say_letters

from lightning_core import LLM, Trainer, rollout
from lightning_core.errors import LightningError
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


def train(folder: Path, options: list[str]) -> tuple[bool, str]:
    """Train; return whether everything is as it should be, and what was measured."""
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
    found = [each.get("training/rollout_logprobs_diff_mean") for each in steps]
    is_exact = len(found) == _STEPS and all(each is not None and each < _LARGEST_DIFFERENCE for each in found)
    told = f"{result.status}, log-prob differences {found}, reward by step {[s.get('training/reward') for s in steps]}"
    return is_exact and result.status == "succeeded" and not result.rollouts.failed, told


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line names; the exit status tells whether all have passed."""
    parser = argparse.ArgumentParser(prog="python -m lightning_verl.check", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if count_gpus() else "cpu")
    parser.add_argument("--only", help="with commas: hf-grpo,hf-ppo,hf-lora,hf-async, or vllm-... on a GPU")
    given = parser.parse_args(arguments)
    engines = ["hf", *(["vllm"] if given.device == "cuda" and find_spec("vllm") else [])]
    names = [f"{engine}-{name}" for engine in engines for name in TRAININGS]
    asked = given.only.split(",") if given.only else names
    if unknown := set(asked) - set(names):
        parser.error(f"no training {', '.join(sorted(unknown))} here; there are: {', '.join(names)}")
    failed, root = 0, Path(tempfile.mkdtemp(prefix="gpu-check-"))
    for name in asked:
        engine, _, kind = name.partition("-")
        begun, where = (
            time.monotonic(),
            [f"agentlightning.device={given.device}", f"actor_rollout_ref.rollout.name={engine}"],
        )
        try:
            is_right, told = train(root / name, [*TRAININGS[kind], *where])
        except LightningError as exc:
            is_right, told = False, str(exc)
        failed += not is_right
        print(f"{name:12} {'ok' if is_right else 'FAILED':7} {time.monotonic() - begun:4.0f} s  {told}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
