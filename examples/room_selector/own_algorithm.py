"""An algorithm of one's own, in a process of its own: it tries prompts, and keeps the best one.

It knows only the store: what it queues is done by whoever claims it, see README.md.
"""

import asyncio
import sys
from collections.abc import Sequence

import rooms
from lightning_http import LightningStoreClient

from lightning_core import LightningStore, PromptTemplate, find_final_reward
from lightning_core.errors import RunEnded
from lightning_core.types import EnqueueRolloutRequest

PROMPTS = (
    "Find a meeting room with the tool.\n\n{request}",
    "Find a free meeting room with enough seats. Reply with the room's name.\n\n{request}",
    "Of the free rooms with enough capacity and equipment, take the smallest. Reply with the room's name.\n\n{request}",
)


async def measure(store: LightningStore, template: str, tasks: Sequence[rooms.Task]) -> float:
    """Return the mean reward of a prompt on tasks; a rollout without a reward counts 0."""
    resources = await store.add_resources({"prompt_template": PromptTemplate(template=template)})
    queued = await store.enqueue_many_rollouts(
        [EnqueueRolloutRequest(input=task, mode="train", resources_id=resources.resources_id) for task in tasks]
    )
    ended = await store.wait_for_rollouts(rollout_ids=[each.rollout_id for each in queued])
    rewards = [find_final_reward(await store.query_spans(each.rollout_id, "latest")) or 0.0 for each in ended]
    return sum(rewards) / len(rewards)


async def search(url: str, tasks: Sequence[rooms.Task]) -> str:
    """Return the best of the prompts, and end the run, so that its runners end."""
    async with LightningStoreClient(url) as store:
        await store.dequeue_many_rollouts(limit=0)  # claims nothing; raises RunEnded where nobody would do the work
        scores = {}
        for template in PROMPTS:
            scores[template] = await measure(store, template, tasks)
            print(f"{scores[template]:.2f}  {template.splitlines()[0]}", flush=True)
        await store.end_run()
    return max(scores, key=scores.__getitem__)


if __name__ == "__main__":
    try:
        best = asyncio.run(search(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:4747", rooms.train()))
    except RunEnded as exc:
        sys.exit(f"{exc}; start `agl serve store` and `agl worker` anew for another search")
    print(f"best: {best.splitlines()[0]}")
