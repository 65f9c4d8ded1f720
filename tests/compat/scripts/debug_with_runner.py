"""Debugging without a trainer: one step at a time, with a hook that looks at the trace."""

import asyncio
import json

import lightning_core as agl


class ShowTrace(agl.Hook):
    def __init__(self) -> None:
        self.names: list = []

    async def on_trace_end(self, *, agent, runner, tracer, rollout) -> None:
        self.names += [span.name for span in tracer.get_last_trace()]


@agl.rollout
async def chat(task: str, prompt_template: agl.PromptTemplate, rollout: agl.Rollout) -> float:
    agl.emit_message(prompt_template.format(any_question=task))
    if task == "crash":
        raise ValueError("the agent gave up")
    return 0.5


async def main() -> None:
    agl.configure_logger()
    tracer = agl.OtelTracer()
    runner = agl.LitAgentRunner[str](tracer)
    store = agl.InMemoryLightningStore()
    show = ShowTrace()
    prompt = agl.PromptTemplate(template="You are helpful. {any_question}", engine="f-string")
    outcome: dict = {}
    with runner.run_context(agent=chat, store=store, hooks=[show]):
        rollout = await runner.step("Why is the sky blue?", resources={"main_prompt": prompt})
        spans = await store.query_spans(rollout.rollout_id)
        outcome["spans"] = [[span.sequence_id, span.name] for span in spans]
        outcome["message"] = agl.get_message_value(spans[0])
        outcome["reward"] = agl.find_final_reward(spans)
        try:
            await runner.step("crash", resources={"main_prompt": prompt})
        except ValueError as error:
            outcome["error"] = str(error)
    outcome["seen by the hook"] = show.names[:1]
    attempts = [await store.get_latest_attempt(each.rollout_id) for each in await store.query_rollouts()]
    outcome["attempts"] = [attempt.status for attempt in attempts]
    print(json.dumps(outcome, sort_keys=True))


if __name__ == "__main__":
    asyncio.run(main())
