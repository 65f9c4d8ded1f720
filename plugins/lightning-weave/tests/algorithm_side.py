"""The side of the algorithm, started by test_processes.py: it knows nothing of Weave, and learns from its traces.

Usage: python algorithm_side.py FOLDER; the folder gets the URL of the store and, at the end, what was learned.
"""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from lightning_http import LightningStoreServer

from lightning_core import InMemoryLightningStore, Trainer, algo, rollout
from lightning_core.adapter import TracerTraceToTriplet
from lightning_core.algorithm import run_batch
from lightning_core.store import LightningStore

FOLDER = Path(sys.argv[1])
start = LightningStoreServer.start


async def start_and_tell(self: LightningStoreServer) -> None:
    await start(self)
    (FOLDER / "url.part").write_text(self.url)
    (FOLDER / "url.part").rename(FOLDER / "url")


LightningStoreServer.start = start_and_tell  # type: ignore[method-assign]


@rollout
def elsewhere(task: Any) -> float:
    raise AssertionError("the agent runs in the runners' process")


@algo
async def learn(store: LightningStore, train_dataset: list[Any]) -> None:
    batch = await run_batch(store, train_dataset, mode="train")
    triplets, names = [], set()
    for one in batch.outcomes:
        spans = await store.query_spans(one.rollout.rollout_id)
        names |= {span.name for span in spans}
        triplets += TracerTraceToTriplet().adapt(list(spans))
    found = {
        "rewards": batch.rewards,
        "names": sorted(names),
        "token_ids": [list(triplet.response["token_ids"]) for triplet in triplets],
        "has_weave": importlib.util.find_spec("weave") is not None,
        "has_verl": importlib.util.find_spec("verl") is not None,
    }
    (FOLDER / "learned.json").write_text(json.dumps(found))


trainer = Trainer(algorithm=learn, store=InMemoryLightningStore(), strategy={"name": "processes", "role": "algorithm"})
if __name__ == "__main__":
    trainer.fit(elsewhere, [1, 2, 3, 4])
