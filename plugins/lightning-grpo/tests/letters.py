"""A whole training in a process of its own: agents of two turns are to say the letter a.

Prints a line of JSON for each report, and one at the end. Run by the tests; by hand:

    python letters.py MODEL '{"steps": 3}'
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from lightning_grpo import GRPO
from lightning_tokens.testing import letter_tasks, say_letters

from lightning_core import LLM, Trainer, rollout
from lightning_core.runs.folder import runs_in


@rollout
def agent(task: dict[str, Any], llm: LLM) -> float:
    """Do what the agent of the check does, and write down that it did."""
    if Path("outage").exists():
        raise ConnectionError("what it needs is away")
    reward = say_letters(task, llm)
    with Path(os.environ["AGENT_LOG"]).open("a") as log:
        log.write(f"{task['number']}\n")
    return reward


class Told(GRPO):
    """Prints what is reported; ends after a step, where it is to."""

    end_at: int | None = None
    end_by = ""
    end_unwritten = False

    def report(self, metrics: Mapping[str, float | None], **more: Any) -> None:
        best = more.get("best_resources")
        line = {"step": more.get("step"), "best": best and best["main_llm"].model, **metrics}
        print("TOLD", json.dumps(line), file=sys.stderr, flush=True)
        is_last = more.get("step") is not None and more["step"] == self.end_at
        if not (is_last and self.end_unwritten):
            super().report(metrics, **more)
        if is_last and self.end_by == "outage":
            Path("outage").touch()
        elif is_last:
            os.kill(os.getpid(), signal.Signals[self.end_by])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("options", nargs="?", default="{}")
    parser.add_argument("--end-at", type=int)
    parser.add_argument("--end-by", choices=("SIGINT", "SIGKILL", "outage"))
    parser.add_argument("--unwritten", action="store_true", help="end before the last report is written")
    parser.add_argument("--val-tasks", type=int, default=0)
    parser.add_argument("--test-tasks", type=int, default=0)
    parser.add_argument("--trainer", default="{}", help="further options of the trainer, as JSON")
    parser.add_argument("--run", help="the folder of one run, which is gone on with where there is one")
    given = parser.parse_args()
    own = {"steps": 3, "batch_size": 4, "group_size": 4, "learning_rate": 3e-3, "max_tokens": 160, "device": "cpu"}
    algorithm = Told(given.model, **{**own, **json.loads(given.options)})
    algorithm.end_at, algorithm.end_by, algorithm.end_unwritten = given.end_at, given.end_by, given.unwritten
    root = None if given.run is None else Path(given.run)
    runs = runs_in(root) if root is not None else []
    trainer = Trainer(
        algorithm=algorithm, run_dir=runs[0] if runs else root, **{"n_runners": 16, **json.loads(given.trainer)}
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets programs in the background ignore it
    try:
        result = trainer.fit(
            agent,
            letter_tasks(0, 16),
            val_dataset=letter_tasks(100, 100 + given.val_tasks) or None,
            test_dataset=letter_tasks(-given.test_tasks, 0) or None,
        )
    finally:
        asyncio.run(trainer.store.aclose())
    best = (result.best_resources or {}).get("main_llm")
    found = result.comparison
    ended = {"status": result.status, "best": best and best.model, "metrics": result.metrics}
    ended["comparison"] = None if found is None else [found.mode, str(found.before), str(found.difference)]
    print("END", json.dumps(ended), flush=True)


if __name__ == "__main__":
    main()
