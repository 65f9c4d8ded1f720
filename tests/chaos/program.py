"""What the chaos tests train: it writes down, outside of the store, what the store has acknowledged.

Each process appends lines of JSON to a file of its own in the folder `journal`; the algorithm writes `seen.json`.
"""

import asyncio
import json
import os
import random
from pathlib import Path
from typing import Any

from lightning_core import emit_message
from lightning_core.agent import LitAgent
from lightning_core.algorithm import Algorithm, run_batch
from lightning_core.runner import LitAgentRunner
from lightning_core.types import Attempt, AttemptedRollout, Dataset, NamedResources, Rollout, Span

JOURNAL = Path(__file__).parent / "journal"
BATCH = 75


def note(what: str, attempt: Attempt, **facts: object) -> None:
    """Write a line that a kill of this process cannot take back."""
    entry = {"what": what, "rollout": attempt.rollout_id, "attempt": attempt.attempt_id, **facts}
    file = os.open(JOURNAL / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, (json.dumps(entry) + "\n").encode())
    finally:
        os.close(file)


class Work(LitAgent[int]):
    """Records spans in both ways: by the tracer, and by the store itself, whose answer it waits for."""

    async def rollout_async(self, task: int, resources: NamedResources, rollout: Rollout) -> float:
        assert isinstance(rollout, AttemptedRollout)
        attempt = rollout.attempt
        note("began", attempt)
        for number in range(2):
            emit_message(f"thought {number}")
            await asyncio.sleep(random.uniform(0.0, 0.05))
            span = Span.from_attributes(
                attributes={"number": number},
                rollout_id=attempt.rollout_id,
                attempt_id=attempt.attempt_id,
                name="acknowledged",
            )
            runner = self.get_runner()
            assert isinstance(runner, LitAgentRunner)
            await runner.store.add_many_spans([span])
            note("spans", attempt, spans=[span.span_id])
        return float(task)


agent = Work()


class Witness:
    """Writes down what is known of an attempt once its report is acknowledged."""

    def lightning_rollout_end(self, rollout: Rollout, attempt: Attempt, spans: list[Span]) -> None:
        note("reported", attempt, status=attempt.status, spans=[span.span_id for span in spans])


class Count(Algorithm):
    """Runs the agent once on each sample, in batches, and writes down how that went."""

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        store = self.get_store()
        tasks = [train_dataset[index] for index in range(len(train_dataset))] if train_dataset is not None else []
        seen = await store.load_state("seen") or []
        while len(seen) < len(tasks):
            first = len(seen)
            batch = await run_batch(store, tasks[first : first + BATCH], mode="train", request_id=f"from {first}")
            seen += [
                {
                    "input": each.rollout.input,
                    "rollout": each.rollout.rollout_id,
                    "attempt": each.attempt.attempt_id if each.attempt is not None else None,
                    "status": each.rollout.status,
                    "reward": each.reward,
                }
                for each in batch.outcomes
            ]
            await store.save_state("seen", seen)
            self.report({"seen": len(seen)}, step=len(seen) // BATCH)
        (JOURNAL.parent / "seen.json").write_text(json.dumps(seen))
