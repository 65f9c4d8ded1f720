"""The store and a runner by hand: a queue, retries, a stop event, queries."""

import asyncio
import json

import lightning_core as agl


class Flaky(agl.LitAgent):
    """Fails on its first attempt at anything even."""

    def __init__(self) -> None:
        super().__init__()
        self.tries: dict = {}

    async def rollout_async(self, task: int, resources: agl.NamedResources, rollout: agl.Rollout) -> float:
        self.tries[task] = self.tries.get(task, 0) + 1
        if task % 2 == 0 and self.tries[task] == 1:
            raise RuntimeError(f"{task} is even")
        return task / 10


async def main() -> None:
    store = agl.InMemoryLightningStore()
    event = agl.ThreadingEvent()
    await store.add_resources({"main_prompt": agl.PromptTemplate(template="{number}", engine="f-string")})
    retry = agl.RolloutConfig(max_attempts=2, retry_condition=["failed"], timeout_seconds=30)
    queued = [await store.enqueue_rollout(task, mode="train", config=retry) for task in (1, 2, 3)]
    lost = await store.enqueue_rollout(4, mode="val", metadata={"note": "no retry"})

    runner = agl.LitAgentRunner(agl.OtelTracer(), poll_interval=0.05, heartbeat_interval=1.0)
    with runner.run_context(agent=Flaky(), store=store):
        working = asyncio.create_task(runner.iter(event=event))
        everything = [rollout.rollout_id for rollout in [*queued, lost]]
        ended = await store.wait_for_rollouts(rollout_ids=everything, timeout=60)
        event.set()
        await working

    outcome: dict = {"ended": sorted([each.input, each.status] for each in ended)}
    outcome["attempts"] = [
        [attempt.status for attempt in await store.query_attempts(rollout.rollout_id)] for rollout in queued
    ]
    failed = await store.query_rollouts(status_in=["failed"])
    outcome["failed"] = [[each.input, each.metadata["note"]] for each in failed]
    page = await store.query_rollouts(sort_by="start_time", sort_order="desc", limit=2, offset=1)
    outcome["page"] = [each.input for each in page]
    outcome["rewards"] = [agl.find_final_reward(await store.query_spans(each.rollout_id, "latest")) for each in queued]
    outcome["nothing left"] = await store.dequeue_rollout(worker_id="by-hand") is None
    by_hand = await store.start_rollout("by hand", worker_id="by-hand")
    await store.update_attempt(by_hand.rollout_id, "latest", status="succeeded")
    outcome["by hand"] = (await store.get_rollout_by_id(by_hand.rollout_id)).status
    print(json.dumps(outcome, sort_keys=True))


if __name__ == "__main__":
    asyncio.run(main())
