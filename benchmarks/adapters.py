"""How fast a trace of model calls becomes triplets and trajectories, a line a figure.

Every call adds 50 tokens to the conversation and answers with 20, so that its prompt is all that came before: the
prompts of 1,000 calls have 35 million tokens. agentlightning reads the same trace where it is installed.
"""

import gc
import random
import time
from collections.abc import Callable
from typing import Any

from lightning_core.adapter import LlmProxyTraceToTriplet, TracerTraceToTriplet, TraceToMessages, TraceToTrajectories
from lightning_core.types import Span

CALLS = 1_000
NEW_PROMPT_TOKENS = 50
RESPONSE_TOKENS = 20
BRANCHES = 300
BRANCH_PREFIX_TOKENS = 20_000
TRIPLET_TARGET_SECONDS = 0.040
REPEATS = 5


def conversation(span_type: Any, calls: int) -> list[Any]:
    """Make the trace of one growing conversation: a root, its model calls, and a reward at the end."""
    numbers = random.Random(0)
    tokens = [numbers.randrange(1_000, 150_000) for _ in range(calls * (NEW_PROMPT_TOKENS + RESPONSE_TOKENS))]
    spans = [_span(span_type, 1, "session", {}, None, 0.0, calls + 2.0)]
    for call in range(calls):
        prompt_end = call * (NEW_PROMPT_TOKENS + RESPONSE_TOKENS) + NEW_PROMPT_TOKENS
        attributes = {
            "gen_ai.request.model": "small",
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": "go on",
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.content": "as you wish",
            "gen_ai.completion.0.finish_reason": "stop",
            "gen_ai.response.id": f"chatcmpl-{call}",
            "gen_ai.response.model": "small",
            "gen_ai.usage.prompt_tokens": prompt_end,
            "prompt_token_ids": tokens[:prompt_end],
            "response_token_ids": tokens[prompt_end : prompt_end + RESPONSE_TOKENS],
        }
        start = call + 1.0
        spans.append(_span(span_type, call + 2, "openai.chat.completion", attributes, "span-1", start, start + 0.5))
    reward = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 1.0}
    spans.append(_span(span_type, calls + 2, "agentlightning.annotation", reward, "span-1", calls + 1.0, calls + 1.0))
    return spans


def branches(span_type: Any) -> list[Any]:
    """Make the trace of many sub-agents that all begin with one long prefix."""
    numbers = random.Random(0)
    prefix = [numbers.randrange(1_000, 150_000) for _ in range(BRANCH_PREFIX_TOKENS)]
    return [
        _span(
            span_type,
            number,
            "openai.chat.completion",
            {"prompt_token_ids": [*prefix, 1, number], "response_token_ids": [2, 3]},
            None,
            number,
            number + 0.5,
        )
        for number in range(1, BRANCHES + 1)
    ]


def best_seconds(work: Callable[[], Any]) -> float:
    """Return the CPU time of the fastest of a few repeats."""
    times = []
    for _ in range(REPEATS):
        gc.collect()
        began = time.process_time()
        result = work()
        times.append(time.process_time() - began)
        del result
    return min(times)


def report(name: str, adapter: Callable[[list[Any]], Any], spans: list[Any], target: str = "") -> None:
    """Print how long an adapter takes for these spans."""
    calls = [span.attributes for span in spans if "prompt_token_ids" in span.attributes]
    tokens = sum(len(call["prompt_token_ids"]) + len(call["response_token_ids"]) for call in calls)
    seconds = best_seconds(lambda: adapter(spans))
    each = f"{seconds / tokens * 1e9:.2f} ns a token of {tokens:,}"
    print(f"{name}: {seconds * 1e3:,.1f} ms for {len(calls):,} calls, {each}{target}", flush=True)


def _span(
    span_type: Any, number: int, name: str, attributes: dict[str, Any], parent: str | None, start: float, end: float
) -> Any:
    return span_type.from_attributes(
        attributes=attributes,
        rollout_id="ro-1",
        attempt_id="at-1",
        sequence_id=number,
        name=name,
        trace_id="trace-1",
        span_id=f"span-{number}",
        parent_id=parent,
        start_time=start,
        end_time=end,
    )


def main() -> None:
    """Measure ours, and the peer's where it is installed."""
    spans = conversation(Span, CALLS)
    target = f" (target: {TRIPLET_TARGET_SECONDS * 1e3:.0f} ms)"
    report("lightning-core triplets", TracerTraceToTriplet(), spans, target)
    report("lightning-core proxy triplets", LlmProxyTraceToTriplet(), spans)
    report("lightning-core messages", TraceToMessages(), spans)
    for calls in (CALLS // 4, CALLS // 2, CALLS):
        report("lightning-core trajectories", TraceToTrajectories(), [*spans[: calls + 1], spans[-1]])
    report("lightning-core trajectories of branches of one prefix", TraceToTrajectories(), branches(Span))
    try:
        from agentlightning.adapter import TracerTraceToTriplet as PeerAdapter  # type: ignore[import-not-found]
        from agentlightning.types import Span as PeerSpan  # type: ignore[import-not-found]
    except ImportError as exc:
        print(f"agentlightning triplets: skipped, not installed ({exc})")
        return
    report("agentlightning triplets", PeerAdapter(), conversation(PeerSpan, CALLS))


if __name__ == "__main__":
    main()
