"""An algorithm class that learns from triplets, of spans that the agent hands over itself."""

import json

import lightning_core as agl


def model_call(prompt: list, response: list, at: float) -> agl.SpanCoreFields:
    return agl.SpanCoreFields(
        name="openai.chat.completion",
        attributes={
            "gen_ai.response.id": f"chatcmpl-{at}",
            "prompt_token_ids": prompt,
            "response_token_ids": response,
        },
        start_time=at,
        end_time=at + 0.5,
        status=agl.TraceStatus(status_code="OK"),
    )


class TokenAgent(agl.LitAgent):
    def rollout(self, task: dict, resources: agl.NamedResources, rollout: agl.Rollout) -> agl.RolloutRawResult:
        agl.emit_reward(task["reward"])
        return [model_call([1, 2], task["tokens"], 1000.0), model_call([1, 2, 3], [7], 1002.0)]


class CollectTriplets(agl.Algorithm):
    """Runs each sample once and keeps what a trainer of weights would be given."""

    def __init__(self) -> None:
        self.batch: list = []

    async def run(self, train_dataset=None, val_dataset=None) -> None:
        store = self.get_store()
        adapter = self.get_adapter()
        assert self.get_llm_proxy() is None
        await store.add_resources(self.get_initial_resources())
        assert self.get_trainer().algorithm is self
        requests = [agl.EnqueueRolloutRequest(input=sample, mode="train") for sample in train_dataset]
        queued = await store.enqueue_many_rollouts(requests)
        ended = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id for rollout in queued], timeout=60)
        for rollout in sorted(ended, key=lambda each: each.input["reward"]):
            for triplet in adapter.adapt(await store.query_spans(rollout.rollout_id, "latest")):
                self.batch.append(
                    [list(triplet.prompt["token_ids"]), list(triplet.response["token_ids"]), triplet.reward]
                )


def main() -> None:
    algorithm = CollectTriplets()
    tracer = agl.OtelTracer()
    trainer = agl.Trainer(
        algorithm=algorithm,
        tracer=tracer,
        runner=agl.LitAgentRunner(tracer, poll_interval=0.05),
        adapter={"repair_hierarchy": False},
        strategy={"type": "shm", "main_thread": "algorithm"},
        initial_resources={"main_llm": agl.LLM(endpoint="http://127.0.0.1:9/v1", model="tokens")},
    )
    trainer.fit(TokenAgent(), [{"tokens": [3, 4], "reward": 0.25}, {"tokens": [5], "reward": 1.0}])
    print(json.dumps(algorithm.batch))


if __name__ == "__main__":
    main()
