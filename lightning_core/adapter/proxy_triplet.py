"""From the spans that a model proxy recorded to triplets."""

from collections.abc import Sequence

from lightning_core.adapter.calls import agent_calls
from lightning_core.adapter.order import in_order
from lightning_core.adapter.rewards import match_by_sequence
from lightning_core.adapter.triplet import TraceToTripletBase
from lightning_core.types import Span, Triplet


class LlmProxyTraceToTriplet(TraceToTripletBase):
    """Makes a triplet of each model call whose tokens were recorded, as a model proxy does it.

    Only `sequence_id` orders spans, for the proxy's clock may not be the agent's. A reward is of the latest call
    with a smaller `sequence_id` that has no reward yet. A call without the engine's tokens, or with an empty answer,
    is left out, and so is one of a grader. Of several choices the first one counts. A call that several sources
    recorded is one.

    A triplet's `prompt` and `response` are `{"token_ids": ...}`, its `metadata` is `{"response_id": ...}`. The token
    ids are the span's own list or tuple; do not change them.
    """

    def adapt(self, source: Sequence[Span], /) -> list[Triplet]:
        """Return the triplets of an attempt, in the order of its calls.

        Raises:
            ValueError: When a span has a reward without a name or a number.
        """
        calls = [call for call in agent_calls(source) if call.prompt_token_ids and call.response_token_ids]
        rewards = match_by_sequence({call.order: call.spans[0] for call in calls}, in_order(source))
        return [
            Triplet(
                prompt={"token_ids": call.prompt_token_ids},
                response={"token_ids": call.response_token_ids},
                reward=rewards[call.order][0].value if call.order in rewards else None,
                metadata={"response_id": call.response_id},
            )
            for call in calls
        ]
