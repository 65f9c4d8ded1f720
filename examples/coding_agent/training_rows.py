"""Shows the training rows of a run: `python training_rows.py runs/RUN`."""

import asyncio
import sys
from collections.abc import AsyncIterator
from itertools import groupby
from pathlib import Path

from lightning_sqlite import SqliteLightningStore

from lightning_core.adapter import TraceToTrajectories, Trajectories


async def rows_of(run: Path) -> AsyncIterator[tuple[str, Trajectories]]:
    """Give each rollout of the agent in the folder of a run, and its rows."""
    store = SqliteLightningStore(run / "store.db", run_id=run.name)
    try:
        for rollout in await store.query_rollouts(mode_in=["train", "val", "test"]):
            yield rollout.rollout_id, TraceToTrajectories().adapt(await store.query_spans(rollout.rollout_id))
    finally:
        await store.aclose()


async def main(run: Path) -> None:
    """Print a line a row: how many tokens are the prompt's, and then whose they are in turn."""
    async for rollout_id, found in rows_of(run):
        for row in found.rows:
            turns = [
                f"{len(list(tokens))} {'of the model' if is_sampled else 'of the agent'}"
                for is_sampled, tokens in groupby(row.mask)
            ]
            print(f"{rollout_id}  reward {found.final_reward}  prompt {len(row.prompt_ids)}, {', '.join(turns)}")
        for refused in found.refused:
            print(f"{rollout_id}  no row: {refused.reason}")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]).absolute()))
