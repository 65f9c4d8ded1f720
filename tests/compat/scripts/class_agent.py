"""An agent class with methods of its own for training and validation, and a hook that watches it."""

import asyncio
import json

import lightning_core as agl


class Guesser(agl.LitAgent):
    """Guesses a number; in validation it is told how far off it was."""

    def __init__(self) -> None:
        super().__init__()
        self.guess = 5

    async def training_rollout_async(self, task: int, resources: agl.NamedResources, rollout: agl.Rollout) -> float:
        await asyncio.sleep(0)
        assert self.get_runner().get_agent() is self
        assert self.get_tracer() is self.get_trainer().tracer
        return 1.0 if task == self.guess else 0.0

    async def validation_rollout_async(self, task: int, resources: agl.NamedResources, rollout: agl.Rollout) -> float:
        with agl.operation(name="compare", guess=self.guess):
            return 1.0 - abs(task - self.guess) / 10


class Watcher(agl.Hook):
    def __init__(self) -> None:
        self.moments: list = []

    async def on_rollout_start(self, *, agent: agl.LitAgent, runner: agl.Runner, rollout: agl.Rollout) -> None:
        self.moments.append(f"start {rollout.input}")

    async def on_trace_start(
        self, *, agent: agl.LitAgent, runner: agl.Runner, tracer: agl.Tracer, rollout: agl.Rollout
    ) -> None:
        self.moments.append(f"trace {rollout.mode}")

    async def on_trace_end(
        self, *, agent: agl.LitAgent, runner: agl.Runner, tracer: agl.Tracer, rollout: agl.Rollout
    ) -> None:
        agl.emit_annotation({"watched": True})

    async def on_rollout_end(self, *, agent: agl.LitAgent, runner: agl.Runner, rollout: agl.Rollout, spans) -> None:
        assert isinstance(spans, list)
        self.moments.append(f"end {rollout.input}")


async def outcome(store: agl.LightningStore) -> dict:
    rewards, watched = {}, 0
    for rollout in await store.query_rollouts(status_in=["succeeded"]):
        spans = await store.query_spans(rollout.rollout_id)
        rewards[rollout.input] = agl.find_final_reward(spans)
        watched += sum(span.attributes.get("watched") is True for span in spans)
    return {"rewards": rewards, "watched": watched}


def main() -> None:
    watcher = Watcher()
    store = agl.InMemoryLightningStore(thread_safe=True)
    tracer = agl.OtelTracer()
    trainer = agl.Trainer(
        algorithm=agl.Baseline(polling_interval=0.05, span_verbosity="none"),
        store=store,
        tracer=tracer,
        runner=agl.LitAgentRunner(tracer, poll_interval=0.05),
        strategy=agl.SharedMemoryExecutionStrategy(main_thread="algorithm"),
        hooks=[watcher],
        initial_resources={"main_prompt": agl.PromptTemplate(template="Guess", engine="f-string")},
    )
    trainer.fit(Guesser(), [5, 6], val_dataset=[9])
    print(json.dumps({"moments": watcher.moments, **asyncio.run(outcome(store))}, sort_keys=True))


if __name__ == "__main__":
    main()
