"""A whole training in a process of its own: agents of two turns are to say the letter a.

Prints a line of JSON for each step, and one at the end. Run by the tests; by hand:

    python letters.py MODEL key=value ...
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightning_tokens.generator import Generator
from lightning_tokens.testing import letter_tasks, say_letters
from lightning_verl import VERL
from transformers import AutoTokenizer

from lightning_core import LLM, Trainer, rollout
from lightning_core.runs.folder import RunFolder, runs_in


@rollout
def good(task: dict[str, Any], llm: LLM) -> float:
    return say_letters(task, llm)


@rollout
def flaky(task: dict[str, Any], llm: LLM) -> float:
    reward = say_letters(task, llm)
    if random.random() < 0.3 and task["number"] >= 0:  # those of the test are to tell something
        raise RuntimeError("the agent broke")
    return reward


@rollout
def uneven(task: dict[str, Any], llm: LLM) -> float:
    return say_letters(task, llm, turns=random.randint(1, 3))


AGENTS = {"good": good, "flaky": flaky, "uneven": uneven}


class Told(VERL):
    """Prints what each step has measured, and which weights are served now; ends after a step, where it is to."""

    end_at: int | None = None
    end_by = ""

    def report(self, metrics: Mapping[str, float | None], **more: Any) -> None:
        import ray

        server = ray.get_actor("hf_server_0")
        line = {"step": more.get("step"), "weights": ray.get(server.fingerprint.remote()), **metrics}
        sys.stderr.write(f"STEP {json.dumps(line)}\n")  # what the trainer's thread prints is logged instead
        sys.stderr.flush()
        super().report(metrics, **more)
        if more.get("step") is None or more["step"] != self.end_at:
            return
        if self.end_by == "SIGKILL":
            sys.stderr.write(f"LEAVES {ray.get(ray.remote(num_cpus=0)(leave).remote())}\n")
        os.kill(os.getpid(), signal.Signals[self.end_by])


def leave() -> int:
    """Start a process that outlives its worker, as vLLM's engine does, and return its id; a child Ray would end."""
    return int(subprocess.run(["sh", "-c", "sleep 600 >&2 & echo $!"], stdout=subprocess.PIPE, check=True).stdout)


def merged(adapter: Path) -> str:
    """Merge an adapter into its base, and round it as verl does; return the digest of the weights."""
    from peft import AutoPeftModelForCausalLM

    whole = adapter.with_name("merged")
    loaded = AutoPeftModelForCausalLM.from_pretrained(adapter, dtype="float32")
    loaded.merge_and_unload().bfloat16().save_pretrained(whole)
    base = json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"]
    AutoTokenizer.from_pretrained(base).save_pretrained(whole)
    return Generator.load(str(whole)).fingerprint()


def run_dir(root: Path) -> Path | RunFolder:
    """Return the run below a folder, or the folder for a first one."""
    runs = runs_in(root)
    return runs[0] if runs else root


def main(options: Sequence[str] | None = None) -> None:
    """Train as these options say, or those of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--agent", default="good", choices=AGENTS)
    parser.add_argument("--preset", default="grpo")
    parser.add_argument("--end-at", type=int, help="the step after which it ends")
    parser.add_argument("--end-by", choices=("SIGINT", "SIGKILL"))
    parser.add_argument("--tasks", type=int, default=64)
    parser.add_argument("--val-tasks", type=int, default=0)
    parser.add_argument("--test-tasks", type=int, default=0)
    parser.add_argument("--trainer", default="{}", help="further options of the trainer, as JSON")
    parser.add_argument("--own-classes", action="store_true", help="take those of the page about verl")
    parser.add_argument("--run", help="the folder of one run, which is gone on with where there is one")
    given = parser.parse_intermixed_args(options)
    config = [
        "agentlightning.device=cpu",
        "agentlightning.trace_aggregator.trajectory_max_prompt_length=128",
        "agentlightning.trace_aggregator.trajectory_max_response_length=128",
        f"actor_rollout_ref.model.path={given.model}",
        "actor_rollout_ref.actor.optim.lr=3e-3",
        "actor_rollout_ref.actor.use_kl_loss=False",
        "data.train_batch_size=8",
        "data.max_prompt_length=128",
        "data.max_response_length=64",
        "trainer.val_before_train=False",
        "trainer.default_local_dir=checkpoints",
        "trainer.total_training_steps=3",
        *given.overrides,
    ]
    own = {"trainer_cls": "own_classes:Announced", "daemon_cls": "own_classes:Brief"} if given.own_classes else {}
    algorithm = Told(config, preset=given.preset, **own)
    algorithm.end_at, algorithm.end_by = given.end_at, given.end_by
    trainer = Trainer(
        algorithm=algorithm,
        run_dir=None if given.run is None else run_dir(Path(given.run)),
        **{"n_runners": 16, **json.loads(given.trainer)},
    )
    # A shell lets programs in the background ignore it, and what these start does so, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = trainer.fit(
            AGENTS[given.agent],
            letter_tasks(0, given.tasks),
            val_dataset=letter_tasks(0, given.val_tasks) or None,
            test_dataset=letter_tasks(-given.test_tasks, 0) or None,
        )
    finally:
        asyncio.run(trainer.store.aclose())
    ended = {"status": result.status, "failures": str(result.failures), **asdict(result.rollouts)}
    best = (result.best_resources or {}).get("main_llm")  # none before the first model is saved
    ended |= {"metrics": result.metrics, "best": best and best.model}
    if best is not None and Path(best.model).name == "huggingface":
        ended["saved"] = Generator.load(best.model).fingerprint()
    elif best is not None and Path(best.model, "adapter_config.json").exists():
        ended["saved"] = merged(Path(best.model))
    found = result.comparison
    ended |= {"comparison": None if found is None else [found.mode, str(found.before), str(found.difference)]}
    print("END", json.dumps(ended), flush=True)


if __name__ == "__main__":
    main()
