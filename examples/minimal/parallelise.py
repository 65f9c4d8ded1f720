"""Run an agent on many tasks at once: as tasks of one event loop, then in processes of their own."""

import time
from typing import Any

from lightning_core import Trainer, rollout


@rollout
def slow_agent(task: dict[str, Any]) -> float:
    """Wait as for a model."""
    time.sleep(0.2)
    return 1.0


def measure(**options: Any) -> None:
    """Print how long eight tasks took."""
    began = time.perf_counter()
    trainer = Trainer(algorithm="baseline", **options)
    result = trainer.fit(slow_agent, train_dataset=[{"number": number} for number in range(8)])
    print(f"{options}: {result.rollouts.succeeded} rollouts in {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":  # processes import this file anew
    measure(n_runners=1)
    measure(n_runners=8)
    measure(strategy={"name": "processes", "n_runners": 2, "concurrency": 4})
