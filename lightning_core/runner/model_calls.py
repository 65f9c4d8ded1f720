"""The model calls of an attempt that go through a proxy: whose key they have, and when all of them are recorded."""

from collections.abc import Sequence

from lightning_core.adapter import genai
from lightning_core.adapter.grouping import has_failed
from lightning_core.errors import BudgetExhausted, Fault
from lightning_core.runner.outcome import Outcome
from lightning_core.store import LightningStore
from lightning_core.types import AttemptedRollout, NamedResources, ProxyLLM, Span

BUDGET_PAUSE_SECONDS = 1.0
"""How long a runner waits after such a call. Without this, rollouts would be claimed and refused as fast as it goes
until all have failed; the budget may be counted where nobody hears at once that it is used up."""


def with_key(resources: NamedResources, key: str | None) -> NamedResources:
    """Return resources as one attempt gets them: what is behind a proxy is opened with the attempt's key.

    Args:
        resources: Stay as they are.
        key: The attempt's; None where there is none.
    """
    if key is None:
        return resources
    return {
        name: resource.model_copy(update={"api_key": key})
        if isinstance(resource, ProxyLLM) and resource.api_key is None
        else resource
        for name, resource in resources.items()
    }


async def take_in_calls(
    store: LightningStore, resources: NamedResources, rollout: AttemptedRollout, outcome: Outcome, *, end: bool
) -> None:
    """Wait until the store has the calls that an attempt made through proxies; its outcome has them then, too.

    Args:
        store: Where spans are.
        resources: The attempt's, with its key.
        rollout: The rollout with the attempt.
        outcome: How it went so far.
        end: Whether the attempt has ended, so that no further call of it is let through.

    Raises:
        Fault: When a proxy, or the store, is out of reach.
    """
    if not any(isinstance(resource, ProxyLLM) for resource in resources.values()):
        return
    from lightning_core.proxy.flushing import flush_calls  # late: agents without a proxy do not pay for it

    await flush_calls(resources.values(), rollout, end=end)
    outcome.spans = list(await store.query_spans(rollout.rollout_id, rollout.attempt.attempt_id))
    refused = [span for span in outcome.spans if span.attributes.get(genai.ERROR_TYPE) == genai.BUDGET_EXHAUSTED]
    if refused:
        # Neither what it returned nor what it raised says anything of the agent.
        outcome.end_with(BudgetExhausted(refused[0].status.description or "the run's budget is used up"))
        outcome.is_fault = True
    elif outcome.status == "failed" and not outcome.was_stopped and (broken := _without_answer(outcome.spans)):
        # An agent that bears it, and fails at something else later, has failed.
        outcome.end_with(Fault(f"its model gave no answer: {broken.status.description}"))


def _without_answer(spans: Sequence[Span]) -> Span | None:
    """Return the last call, if the proxy got no answer to it; None where it did, or there is none."""
    calls = [span for span in spans if span.attributes.get(genai.OPERATION_NAME) in genai.INFERENCE_OPERATIONS]
    for span in sorted(calls, key=lambda span: span.sequence_id, reverse=True):
        if span.attributes.get(genai.ERROR_TYPE) in genai.BACKEND_FAILED:
            return span
        if not has_failed(span):  # one that has may be the agent's own record of the same call
            return None
    return None
