"""Write spans to a store by hand: with emitters, around an operation, and with any OpenTelemetry tracer."""

import asyncio

from lightning_core import InMemoryLightningStore, OtelTracer, emit_message, emit_reward, operation


@operation
def add(first: int, second: int) -> int:
    """Recorded with its arguments and its result."""
    return first + second


async def main() -> None:
    """Trace one attempt, then read it back."""
    store, tracer = InMemoryLightningStore(), OtelTracer()
    rollout = await store.start_rollout({"question": "2+3"})
    tracer.init()
    try:
        rollout_id, attempt_id = rollout.rollout_id, rollout.attempt.attempt_id
        async with tracer.trace_context("by hand", store=store, rollout_id=rollout_id, attempt_id=attempt_id):
            emit_message("Adding up.")
            result = add(2, 3)
            with tracer.provider.get_tracer("mine").start_as_current_span("check") as span:
                span.set_attribute("result", result)
            emit_reward(float(result == 5))
    finally:
        tracer.teardown()
    await store.update_attempt(rollout_id, attempt_id, status="succeeded")
    for each in await store.query_spans(rollout.rollout_id):
        print(each.sequence_id, each.name)


asyncio.run(main())
