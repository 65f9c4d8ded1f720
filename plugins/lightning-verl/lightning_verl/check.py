"""A check of this machine that anyone can run: trains a tiny model that it makes, a process and a line a training.

python -m lightning_verl.check --device cuda
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning_core import LLM, Trainer, rollout
from lightning_verl.requirements import check_versions, has_accelerator

TRAININGS = {
    "grpo": ["--preset=grpo"],
    "ppo": ["--preset=ppo", "actor_rollout_ref.rollout.n=4"],
    "lora": ["--preset=grpo", "actor_rollout_ref.model.lora_rank=8"],
    "async": ["--preset=grpo", "trainer.v1.trainer_mode=colocate_async"],
}
_LARGEST_DIFFERENCE = 0.01
"""Of the log-probabilities of sampling from the actor's, in the mean of a step, in bf16."""
_STEPS = 3


@rollout
def agent(task: dict[str, Any], llm: LLM) -> float:
    """Ask for the letter a, as any program would; return its share of the answer."""
    message = {"role": "user", "content": f"say the letter a please {task['number']}"}
    body = json.dumps({"model": llm.model, "messages": [message], "max_tokens": 12}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {llm.api_key}"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{llm.endpoint}/chat/completions", body, headers), timeout=300
    ) as response:
        text = str(json.load(response)["choices"][0]["message"]["content"])
    return text.count("a") / max(len(text), 1)


def train(folder: Path, preset: str, options: list[str]) -> None:
    """Train; raise where something is not as it should be."""
    from lightning_tokens.testing import make_tiny_model

    from lightning_verl import VERL

    steps: list[Mapping[str, float | None]] = []

    class Told:
        def lightning_step_end(self, step: int, metrics: Mapping[str, float | None]) -> None:
            steps.append(metrics)

    made = make_tiny_model(folder / "model", hidden_size=256)  # heads of 64, the smallest that vLLM has
    lengths = {f"trajectory_max_{side}_length": 64 for side in ("prompt", "response")}
    config = [
        *(f"agentlightning.trace_aggregator.{name}={length}" for name, length in lengths.items()),
        *(f"actor_rollout_ref.model.path={made}", "actor_rollout_ref.actor.optim.lr=1e-2", "trainer.n_gpus_per_node=1"),
        *("data.train_batch_size=8", "data.max_prompt_length=64", "data.max_response_length=32"),
        *("actor_rollout_ref.rollout.gpu_memory_utilization=0.3", f"trainer.total_training_steps={_STEPS}", *options),
    ]
    trainer = Trainer(algorithm=VERL(config, preset=preset), run_dir=folder / "runs", n_runners=16, hooks=[Told()])  # type: ignore[arg-type]
    result = trainer.fit(agent, [{"number": number} for number in range(8 * _STEPS)])
    found = [each.get("training/rollout_logprobs_diff_mean") for each in steps]
    if result.status != "succeeded" or result.rollouts.failed or len(steps) != _STEPS:
        raise SystemExit(f"expected {_STEPS} steps and no failure; got {result.status}, {result.failures}")
    if any(each is None or each >= _LARGEST_DIFFERENCE for each in found):
        raise SystemExit(f"expected differences of log-probabilities below {_LARGEST_DIFFERENCE}; got {found}")
    print(f"log-prob differences {found}, reward by step {[each.get('training/reward') for each in steps]}")


def main() -> int:
    """Run what the command line names; the exit status tells whether all have passed."""
    parser = argparse.ArgumentParser(prog="python -m lightning_verl.check", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if has_accelerator() else "cpu")
    parser.add_argument("--only", help="with commas: hf-grpo,hf-ppo,hf-lora,hf-async, or vllm-... on a GPU")
    parser.add_argument("--folder", type=Path, help="where logs are kept; without it, a temporary folder")
    parser.add_argument("--limit", type=float, default=600.0, help="the most seconds of a training (default: 600)")
    parser.add_argument("--preset", help=argparse.SUPPRESS)  # in a process of its own
    given, options = parser.parse_known_args()
    check_versions()
    if given.preset:
        train(given.folder, given.preset, options)
        return 0
    engines = ["hf", *(["vllm"] if given.device == "cuda" and find_spec("vllm") else [])]
    names = [f"{engine}-{name}" for engine in engines for name in TRAININGS]
    asked = given.only.split(",") if given.only else names
    if unknown := set(asked) - set(names):
        parser.error(f"no training {', '.join(sorted(unknown))} here; there are: {', '.join(names)}")
    root, failed = given.folder or Path(tempfile.mkdtemp(prefix="gpu-check-")), 0
    for name in asked:
        engine, _, short = name.partition("-")
        folder, begun = root / name, time.monotonic()
        folder.mkdir(parents=True)
        own = [
            f"--folder={folder}",
            f"agentlightning.device={given.device}",
            f"actor_rollout_ref.rollout.name={engine}",
        ]
        with (folder / "log").open("w") as log:
            command = [sys.executable, "-m", "lightning_verl.check", *TRAININGS[short], *own]
            try:
                status = subprocess.run(command, stdout=log, stderr=log, timeout=given.limit, check=False).returncode
            except subprocess.TimeoutExpired:
                status = -1
        last = [line for line in (folder / "log").read_text(errors="replace").splitlines() if line.strip()][-1:]
        failed += status != 0
        told = "ok" if status == 0 else "FAILED"
        print(
            f"{name:12} {told:7} {time.monotonic() - begun:4.0f} s  {''.join(last)[:300]}  ({folder / 'log'})",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
