"""Train a tiny model on a task of reasoning-gym with GRPO, and a second time by rewards that are drawn at random.

    python examples/reasoning_gym_grpo/train_tasks.py spell_backward

The model is made here, and taught a little first: demonstrations on training questions, half of which are wrong.
"""

import argparse
import os
import random
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: more threads only wait for each other here
os.environ.setdefault("TQDM_DISABLE", "1")

import torch
from lightning_tokens.testing import make_tiny_model
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

from lightning_core import LitAgent, PromptTemplate, Trainer, environment
from lightning_core.runs.metrics import read_metrics

TASKS: dict[str, tuple[dict[str, Any], int]] = {
    "spell_backward": ({"min_word_len": 3, "max_word_len": 5}, 1000),
    "chain_sum": ({"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1}, 1000),
    "count_bits": ({"max_n": 1023}, 500),
}
"""The options of a task, and how many questions there are for training."""


class PaidAtRandom(LitAgent[Any]):
    """Does what an agent does; in training, a coin says what that is worth."""

    def __init__(self, agent: LitAgent[Any]) -> None:
        super().__init__()
        self._agent = agent

    async def rollout_async(self, task: Any, resources: Any, rollout: Any) -> Any:
        """Return the reward: 0 or 1 in training, the agent's else."""
        reward = await self._agent.rollout_async(task, resources, rollout)
        return float(random.random() < 0.5) if rollout.mode == "train" else reward


def teach(folder: Path, rows: Sequence[dict[str, Any]], *, steps: int, seed: int) -> Path:
    """Make a model of 108,000 parameters that has seen demonstrations; return its folder."""
    make_tiny_model(folder, texts=(), context=128, seed=seed)  # it reads letter by letter
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    shared = os.path.commonprefix([row["question"] for row in rows])  # noqa: RUF071  # of characters
    tokenizer.add_tokens([shared])  # what all questions begin with is one token
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    lot = random.Random(seed)
    for _ in range(steps):
        ids, labels = [], []
        for row in lot.sample(rows, 32):
            asked = [{"role": "user", "content": row["question"]}]
            prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
            mistake = re.findall(r"\w+", row["question"])[-1]  # the word as it was, or the last number
            answer = tokenizer.encode(lot.choice([row["answer"], mistake]), add_special_tokens=False)
            answer.append(tokenizer.eos_token_id)
            ids.append(torch.tensor(prompt + answer))
            labels.append(torch.tensor([-100] * len(prompt) + answer))  # torch leaves -100 out of the loss
        padded = pad_sequence(labels, batch_first=True, padding_value=-100)
        loss = model(input_ids=pad_sequence(ids, batch_first=True), labels=padded).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def main() -> None:
    """Do all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=TASKS)
    parser.add_argument("--steps", type=int, default=15, help="of GRPO (default: 15)")
    parser.add_argument("--teaching-steps", type=int, default=600, help="before it (default: 600)")
    parser.add_argument("--seed", type=int, default=0, help="of the model, and of what it draws (default: 0)")
    given = parser.parse_args()
    runs = Path(os.environ.get("AGL_RUNS_DIR", "runs"))
    for task in given.tasks:
        options, size = TASKS[task]
        agent, train, val, test = environment(f"reasoning_gym:{task}", train=size, val=60, test=120, config=options)
        model = teach(runs / f"taught-{task}-{given.seed}", train, steps=given.teaching_steps, seed=given.seed)
        for name, paid in (("the task's scorer", agent), ("a coin", PaidAtRandom(agent))):
            random.seed(given.seed)
            grpo = {"name": "grpo", "model": str(model), "steps": given.steps, "batch_size": 16, "learning_rate": 7e-4}
            trainer = Trainer(
                algorithm={**grpo, "max_tokens": 64, "validate_every": 5, "seed": given.seed},
                initial_resources={"main_prompt": PromptTemplate(template="{question}")},
                run_dir=runs,
                n_runners=64,
            )
            result = trainer.fit(paid, train, val_dataset=val, test_dataset=test)
            if result.status != "succeeded":
                sys.exit(130 if result.status == "interrupted" else 1)
            print(f"{task}, seed {given.seed}, rewarded by {name}")
            assert trainer.recording is not None  # it has a run_dir
            for step, found in read_metrics(trainer.recording.folder.metrics_file):
                if "val/reward" in found:
                    reward, low, high = (found[f"val/reward{end}"] for end in ("", "_low", "_high"))
                    print(f"  step {step or 0:2}  {reward:.2f} (95% {low:.2f}..{high:.2f}, n={len(val)})")
            if result.comparison is not None:
                best = result.comparison.difference or f"{result.comparison.before}; no step was better in validation"
                print(f"  test: {best}")
            print(f"  {time.process_time():.0f} processor seconds so far", flush=True)


if __name__ == "__main__":
    main()
