"""An algorithm of one's own: it tries prompts, and leaves the best one in the store."""

import asyncio
import json

import lightning_core as agl

CANDIDATES = ["Say {name}", "Please greet {name} warmly", "Dear {name}"]


@agl.prompt_rollout
async def greet(task: str, prompt_template: agl.PromptTemplate) -> float:
    text = prompt_template.format(name=task)
    await asyncio.sleep(0)
    return ("warmly" in text) + ("Dear" in text) * 0.25


@agl.algo
async def best_prompt(*, store: agl.LightningStore, train_dataset, llm_proxy, adapter, initial_resources) -> None:
    assert llm_proxy is None
    assert isinstance(adapter, agl.TracerTraceToTriplet)
    prompts = [initial_resources["greeting"].template, *CANDIDATES]
    scores = {}
    for prompt in prompts:
        resources = {"greeting": agl.PromptTemplate(template=prompt, engine="f-string")}
        version = await store.add_resources(resources)
        rollouts = [
            await store.enqueue_rollout(
                sample, mode="train", resources_id=version.resources_id, metadata={"prompt": prompt}
            )
            for sample in train_dataset
        ]
        ended = await store.wait_for_rollouts(rollout_ids=[each.rollout_id for each in rollouts], timeout=60)
        rewards = [agl.find_final_reward(await store.query_spans(each.rollout_id, "latest")) for each in ended]
        scores[prompt] = sum(rewards) / len(rewards)
    best = max(scores, key=scores.get)
    await store.add_resources({"greeting": agl.PromptTemplate(template=best, engine="f-string")})
    print(json.dumps({"scores": scores, "best": best}, sort_keys=True))


def main() -> None:
    store = agl.InMemoryLightningStore(thread_safe=True)
    tracer = agl.OtelTracer()
    trainer = agl.Trainer(
        algorithm=best_prompt,
        store=store,
        tracer=tracer,
        runner=agl.LitAgentRunner(tracer, poll_interval=0.05),
        strategy={"type": "shm", "main_thread": "algorithm"},
        n_runners=1,
        initial_resources={"greeting": agl.PromptTemplate(template="Hi {name}", engine="f-string")},
    )
    trainer.fit(greet, train_dataset=["Ada", "Alan"])
    latest = asyncio.run(store.get_latest_resources())
    print(json.dumps(latest.resources["greeting"].model_dump(), sort_keys=True))


if __name__ == "__main__":
    main()
