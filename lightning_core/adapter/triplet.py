"""From the spans that a tracer recorded to triplets."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_core.adapter import genai
from lightning_core.adapter.attributes import decoded, entries, nested
from lightning_core.adapter.base import TraceAdapter
from lightning_core.adapter.calls import ModelCall, agent_calls, call_of
from lightning_core.adapter.conversation import chat_messages
from lightning_core.adapter.rewards import RewardMatchPolicy, match_by_sequence, match_in_tree
from lightning_core.adapter.selection import CallSelector
from lightning_core.adapter.tree import in_order
from lightning_core.former import former
from lightning_core.types import Span, Triplet

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from lightning_core.adapter.tree import TraceTree


_LEFT_OUT = {"messages", "choices", genai.PROMPT_TOKEN_IDS, genai.RESPONSE_TOKEN_IDS}
"""What stands elsewhere in a triplet, so not in its metadata."""


class TraceToTripletBase(TraceAdapter[list[Triplet]]):
    """An adapter whose result is a list of triplets."""


class TracerTraceToTriplet(TraceToTripletBase):
    """Makes a triplet of each model call that a tracer recorded.

    A triplet has

    - `prompt`: `token_ids`, `raw_content` (the messages as recorded) and `image_urls`;
    - `response`: `token_ids`, `raw_content` (the choices as recorded), and `logprobs` where they were recorded;
    - `reward`: the primary one, or None;
    - `metadata`: `request`, `response`, `response_id`, `agent_name`, and `error` when the call failed.

    `token_ids` are the span's own list or tuple, for a prompt may be long; do not change them. They are an empty list
    where the engine gave none. Of several choices the first one counts. A call that several sources recorded is one.

    Args:
        repair_hierarchy: Whether spans that float under the root are first moved to where they belong.
        llm_call_match: A regular expression, searched in span names: the model calls. Spans of the GenAI
            conventions and of OpenInference are also matched as `openai.chat.completion`.
        agent_match: A regular expression, searched in the name of the innermost agent around a call; None for any.
        exclude_llm_call_in_reward: Whether calls within the computation of a reward are left out.
        reward_match: How a reward finds its call.

    Raises:
        ValueError: When an option has a value that it does not take.
    """

    def __init__(
        self,
        repair_hierarchy: bool = True,
        llm_call_match: str = r"openai\.chat\.completion",
        agent_match: str | None = None,
        exclude_llm_call_in_reward: bool = True,
        reward_match: RewardMatchPolicy | str = RewardMatchPolicy.FIRST_OCCURRENCE,
        _skip_empty_token_spans: bool = False,
    ) -> None:
        self.repair_hierarchy = repair_hierarchy
        self.llm_call_match = llm_call_match
        self.agent_match = agent_match
        self.exclude_llm_call_in_reward = exclude_llm_call_in_reward
        self.reward_match = RewardMatchPolicy(reward_match)
        self._skip_empty_token_spans = _skip_empty_token_spans
        self._selector = CallSelector(
            repair_hierarchy=repair_hierarchy,
            llm_call_match=llm_call_match,
            agent_match=agent_match,
            exclude_llm_call_in_reward=exclude_llm_call_in_reward,
        )

    def adapt(self, source: "Sequence[Span] | Sequence[ReadableSpan]", /) -> list[Triplet]:
        """Return the triplets of an attempt; none when it has no spans.

        Args:
            source: The spans of one attempt.

        Returns:
            A triplet for each call: that of a call around others before theirs, else in the order of the attempt.

        Raises:
            ValueError: When a span has a reward without a name or a number.
        """
        return self.adapt_tree(self._selector.tree(_spans(source))) if source else []

    def adapt_tree(
        self, tree: "TraceTree", span_to_triplet: Callable[[Span, str], Triplet] | None = None
    ) -> list[Triplet]:
        """Return the triplets of an attempt whose spans are a tree, as it stands; see `adapt`.

        Args:
            tree: The tree.
            span_to_triplet: Makes a triplet of a call's first span and its agent's name; None for `triplet_of`.
        """
        selected = self._selector.select(tree)
        calls = [call_of(one.spans, order) for order, one in enumerate(selected)]
        pairs = [(one, call) for one, call in zip(selected, calls, strict=True) if self._is_wanted(call)]
        rewards = match_in_tree(
            self.reward_match, tree, {id(one.node): number for number, (one, _) in enumerate(pairs)}
        )
        triplets = [
            span_to_triplet(call.spans[0], one.agent_name) if span_to_triplet else triplet_of(call, one.agent_name)
            for one, call in pairs
        ]
        return [
            triplet.model_copy(update={"reward": rewards[number][0].value if number in rewards else None})
            for number, triplet in enumerate(triplets)
        ]

    def visualize(
        self,
        source: "Sequence[Span] | Sequence[ReadableSpan]",
        /,
        filename: str | Path | None = "trace_tree",
        interested_span_match: str | None = None,
        **options: Any,
    ) -> "TraceTree":
        """Write a drawing of the spans, and return their tree; see `lightning_legacy.trees.draw`.

        Raises:
            NeedsLegacy: When lightning-legacy is not installed.
        """
        draw = former(f"{type(self).__name__}.visualize draws a trace; agl show RUN ROLLOUT prints it").draw
        tree = self._selector.tree(_spans(source))
        draw(tree, filename, interested_span_match, **options)
        return tree

    def _is_wanted(self, call: ModelCall) -> bool:
        return not self._skip_empty_token_spans or bool(call.prompt_token_ids and call.response_token_ids)


def _spans(source: "Sequence[Span] | Sequence[ReadableSpan]") -> list[Span]:
    return [span if isinstance(span, Span) else Span.from_opentelemetry(span, "", "", 0) for span in source]


def triplet_of(call: ModelCall, agent_name: str) -> Triplet:
    """Return the triplet of a call, without a reward."""
    # All that is under `gen_ai` at once, for going through the attributes is most of an adapter's work.
    sources = [(nested(span.attributes, "gen_ai"), span) for span in call.spans]
    prompts = (genai.INPUT_CHAT, genai.INPUT_MESSAGES, genai.OPENINFERENCE_INPUT)
    answers = (genai.OUTPUT_CHOICES, genai.OUTPUT_MESSAGES, genai.OPENINFERENCE_OUTPUT)
    raw_prompt, raw_answer = _first(sources, "prompt", prompts), _first(sources, "completion", answers)
    response: dict[str, Any] = {"token_ids": _or_empty(call.response_token_ids), "raw_content": raw_answer}
    logprobs = _logprobs(call)
    if logprobs is not None:
        response["logprobs"] = logprobs
    metadata = {
        "request": _without_content(_first(sources, "request", (genai.OPERATION_INPUT,))),
        "response": _without_content(_first(sources, "response", (genai.OPERATION_OUTPUT,))),
        "response_id": call.response_id,
        "agent_name": agent_name,
    }
    if call.error is not None:
        metadata["error"] = call.error
    prompt = {
        "token_ids": _or_empty(call.prompt_token_ids),
        "raw_content": raw_prompt,
        "image_urls": image_urls(raw_prompt),
    }
    return Triplet(prompt=prompt, response=response, reward=None, metadata=metadata)


def _first(sources: Sequence[tuple[Any, Span]], section: str, others: Sequence[str]) -> Any:
    """Return what the first span that has it says under `gen_ai.<section>`, or else under another prefix."""
    for tree, span in sources:
        found = tree.get(section) if isinstance(tree, dict) else None
        if found is None:
            found = nested(span.attributes, *others)
        if found is not None:
            return found
    return None


def _or_empty(token_ids: Sequence[int] | None) -> Sequence[int]:
    return token_ids if token_ids is not None else []


def _without_content(fields: Any) -> Any:
    if not isinstance(fields, dict):
        return fields
    return {name: value for name, value in fields.items() if name not in _LEFT_OUT}


def _logprobs(call: ModelCall) -> Any:
    """Return them as they were recorded, which may say more than the numbers."""
    for span in call.spans:
        logprobs = decoded(span.attributes.get(genai.LOGPROBS_CONTENT))
        if isinstance(logprobs, list):
            return logprobs
    return call.logprobs


def image_urls(raw_content: Any) -> list[str]:
    """Return the URLs of the images in recorded messages, in the order in which they stand there."""
    given = decoded(raw_content)
    if isinstance(given, dict) and not any(name.isdigit() for name in given):
        given = [given]
    urls: list[str] = []
    for message in entries(given):
        if not isinstance(message, dict):
            continue
        messages = chat_messages([message], role="user") if "parts" in message else [message]
        for part in (part for one in messages for part in entries(decoded(one.get("content")))):
            image = part.get("image_url") if isinstance(part, dict) and part.get("type") == "image_url" else None
            if isinstance(image, dict) and isinstance(image.get("url"), str):
                urls.append(image["url"])
    return urls


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
