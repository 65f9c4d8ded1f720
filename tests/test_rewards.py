"""The final reward that a store keeps is the one that the spans tell, in whatever order they arrive."""

from typing import Any

from hypothesis import given, settings, strategies as st

from lightning_core.emitter import emit_reward, find_final_reward
from lightning_core.rewards import FINAL_REWARD, as_reported, final_reward_in
from lightning_core.semconv import AGL_ANNOTATION
from lightning_core.store import InMemoryLightningStore
from lightning_core.testing.store.base import present
from lightning_core.types import Span

DELIVERIES = st.lists(
    st.tuples(
        st.integers(0, 5),  # which span; the same one again is a repetition
        st.sampled_from([0, 0, 1, 2, 3, 4]),  # its sequence id
        st.sampled_from([None, 0.25, 0.5, 1.0, "broken"]),
        st.booleans(),  # whether it is reported
        st.sampled_from(["", "", "", "end", "replace"]),  # what happens next
    ),
    max_size=10,
)


def span(of: dict[str, str], number: int, sequence_id: int, value: Any, *, reported: bool) -> Span:
    attributes: dict[str, Any] = {}
    if value == "broken":
        attributes = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": "high"}
    elif value is not None:
        attributes = dict(emit_reward(value, propagate=False).attributes)
    made = Span.from_attributes(
        **of, sequence_id=sequence_id, span_id=f"{number:016x}", name=AGL_ANNOTATION, attributes=attributes
    )
    return as_reported(made) if reported else made


@given(DELIVERIES)
@settings(deadline=None)
async def test_the_kept_reward_is_the_one_that_the_spans_tell(
    deliveries: list[tuple[int, int, Any, bool, str]],
) -> None:
    store = InMemoryLightningStore()
    started = await store.start_rollout("task")
    of = {"rollout_id": started.rollout_id, "attempt_id": started.attempt.attempt_id}
    has_ended = False
    for number, sequence_id, value, reported, then in deliveries:
        await store.add_span(span(of, number, sequence_id, value, reported=reported))
        if then == "end" and not has_ended:
            has_ended = True
            await store.update_attempt(**of, status="succeeded")
        if then == "replace":
            await store.update_attempt(**of, metadata={"note": number})
        attempt = present(await store.get_latest_attempt(started.rollout_id))
        kept = final_reward_in(attempt.metadata)
        spans = await store.query_spans(**of)
        if kept is not None:
            assert kept == find_final_reward(spans)
        elif FINAL_REWARD not in (attempt.metadata or {}):
            assert find_final_reward(spans) is None
    await store.aclose()
