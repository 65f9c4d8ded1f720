"""An adapter of one's own, beside the built-in ones, on spans of a rollout."""

import asyncio
import json
from collections.abc import Sequence

import lightning_core as agl


class RewardCurve(agl.TraceAdapter[list]):
    """The rewards of an attempt, in order, with the message that came before each."""

    def adapt(self, source: Sequence[agl.Span], /) -> list:
        curve, message = [], None
        for span in sorted(source, key=lambda each: each.sequence_id):
            message = agl.get_message_value(span) or message
            if agl.is_reward_span(span):
                curve.append([message, agl.get_reward_value(span)])
        return curve


@agl.algo
async def print_curves(*, store: agl.LightningStore, adapter: agl.TraceAdapter, train_dataset, initial_resources):
    await store.update_resources("mountain", initial_resources)
    rollout = await store.enqueue_rollout(train_dataset[0], mode="train")
    await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=60)
    spans = await store.query_spans(rollout.rollout_id, attempt_id="latest")
    print(json.dumps({"curve": adapter.adapt(spans), "called": adapter(spans) == adapter.adapt(spans)}, sort_keys=True))
    messages = agl.TraceToMessages().adapt([chat_span(rollout.rollout_id)])
    print(json.dumps([conversation["messages"] for conversation in messages], sort_keys=True))


def chat_span(rollout_id: str) -> agl.Span:
    return agl.Span.from_attributes(
        rollout_id=rollout_id,
        attempt_id="at-1",
        sequence_id=1,
        name="openai.chat.completion",
        attributes={
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": "Hello?",
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.content": "Hi!",
            "gen_ai.completion.0.finish_reason": "stop",
        },
    )


class Climber(agl.LitAgent):
    async def rollout_async(self, task: list, resources: agl.NamedResources, rollout: agl.Rollout) -> None:
        for height in task:
            agl.emit_message(f"at {height}")
            await asyncio.sleep(0)
            agl.emit_reward(height / 10)


def main() -> None:
    tracer = agl.OtelTracer()
    trainer = agl.Trainer(
        algorithm=print_curves,
        tracer=tracer,
        runner=agl.LitAgentRunner(tracer, poll_interval=0.05),
        adapter=RewardCurve(),
        strategy={"type": "shm", "main_thread": "algorithm"},
        initial_resources={"main_prompt": agl.PromptTemplate(template="Climb", engine="f-string")},
    )
    trainer.fit(Climber(), [[1, 5, 3]])


if __name__ == "__main__":
    main()
