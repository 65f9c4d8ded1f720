"""A fast algorithm of one's own for dry runs, and the parameters of a trainer from older days."""

import json

import lightning_core as agl


@agl.rollout
def shout(task: str, llm: agl.LLM) -> float:
    return float(len(task)) * llm.sampling_parameters["temperature"]


class DryRun(agl.FastAlgorithm):
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.rewards: dict = {}

    async def run(self, train_dataset=None, val_dataset=None) -> None:
        store = self.get_store()
        version = await store.add_resources(self.get_initial_resources())
        for index in range(min(self.limit, len(train_dataset))):
            queued = await store.enqueue_rollout(train_dataset[index], "val", version.resources_id)
            (ended,) = await store.wait_for_rollouts(rollout_ids=[queued.rollout_id], timeout=60)
            self.rewards[ended.input] = agl.find_final_reward(await store.query_spans(ended.rollout_id))


def main() -> None:
    algorithm = DryRun(limit=2)
    tracer = agl.OtelTracer()
    trainer = agl.Trainer(
        n_workers=1,
        algorithm=algorithm,
        tracer=tracer,
        runner=agl.LitAgentRunner(tracer, poll_interval=0.05),
        strategy={"type": "shm", "main_thread": "algorithm"},
        triplet_exporter={"agent_match": "shout"},
        initial_resources={
            "main_llm": agl.LLM(endpoint="http://127.0.0.1:9/v1", model="m", sampling_parameters={"temperature": 0.5})
        },
    )
    assert trainer.n_runners == 1
    assert trainer.adapter.agent_match == "shout"
    trainer.dev(shout, ["a", "four", "ignored"])
    print(json.dumps(algorithm.rewards, sort_keys=True))
    try:
        agl.Trainer(algorithm=NotFast(), tracer=tracer, strategy="shm").dev(shout, ["a"])
    except TypeError:
        print(json.dumps("dev takes fast algorithms only"))


class NotFast(agl.Algorithm):
    async def run(self, train_dataset=None, val_dataset=None) -> None: ...


if __name__ == "__main__":
    main()
