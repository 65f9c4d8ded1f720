"""What an attempt asked of models: calls, tokens and, where it was recorded, money."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lightning_core.adapter import ModelCall, read_model_calls
from lightning_core.adapter.genai import (
    ATTEMPT_LIMIT,
    BUDGET_EXHAUSTED,
    ERROR_TYPE,
    INPUT_TOKENS,
    OPERATION_OUTPUT,
    OUTPUT_TOKENS,
)
from lightning_core.types import Span

_REFUSED = (BUDGET_EXHAUSTED, ATTEMPT_LIMIT)
_INPUT_NAMES = (
    INPUT_TOKENS,
    "gen_ai.usage.prompt_tokens",
    "llm.usage.prompt_tokens",
    "llm.token_count.prompt",  # OpenInference
    f"{OPERATION_OUTPUT}.usage.prompt_tokens",
)
_OUTPUT_NAMES = (
    OUTPUT_TOKENS,
    "gen_ai.usage.completion_tokens",
    "llm.usage.completion_tokens",
    "llm.token_count.completion",
    f"{OPERATION_OUTPUT}.usage.completion_tokens",
)
_COST = (
    "gen_ai.usage.cost",
    "gen_ai.usage.total_cost",
    "gen_ai.usage.cost_usd",
    "gen_ai.cost.total_cost",  # the LiteLLM proxy
    "litellm.cost.total",
    "llm.cost.total",  # OpenInference
)
"""No price list is kept here: a cost is known where the source of a span knows it."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What model calls used. Sums are over the calls that told; None where none did."""

    calls: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None
    """In US dollars, as the spans tell it."""

    def __add__(self, other: "Usage") -> "Usage":
        """Return the sum."""
        return total_usage((self, other))


def total_usage(usages: Iterable[Usage]) -> Usage:
    """Add up usages."""
    each = list(usages)
    return Usage(
        sum(one.calls for one in each),
        _sum(one.input_tokens for one in each),
        _sum(one.output_tokens for one in each),
        _sum(one.cost for one in each),
    )


def read_usage(spans: Sequence[Span]) -> Usage:
    """Add up the model calls of one attempt. A call that several sources recorded counts once.

    One that a budget or a limit kept from starting was never made, and does not count.
    """
    return total_usage(usage_of(call) for call in read_model_calls(spans) if not _was_refused(call))


def usage_of(call: ModelCall) -> Usage:
    """Return what one call used; the numbers of recorded token ids where no source told a number."""
    input_tokens, output_tokens = _find_number(call.spans, _INPUT_NAMES), _find_number(call.spans, _OUTPUT_NAMES)
    if input_tokens is None and call.prompt_token_ids is not None:
        input_tokens = len(call.prompt_token_ids)
    if output_tokens is None and any(choice.token_ids is not None for choice in call.choices):
        output_tokens = sum(len(choice.token_ids or ()) for choice in call.choices)
    return Usage(
        1,
        None if input_tokens is None else int(input_tokens),
        None if output_tokens is None else int(output_tokens),
        _find_number(call.spans, _COST),
    )


def _was_refused(call: ModelCall) -> bool:
    return any(span.attributes.get(ERROR_TYPE) in _REFUSED for span in call.spans)


def _find_number(spans: Iterable[Span], names: Sequence[str]) -> float | None:
    for span in spans:
        for name in names:
            value: Any = span.attributes.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf"):
                return value
    return None


def _sum(values: "Iterable[Any]") -> Any:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return math.fsum(known) if any(isinstance(value, float) for value in known) else sum(known)


_NONE = Usage()
METADATA = "usage"
"""Under this name an attempt's metadata have what its calls used."""


def usage_in(metadata: Mapping[str, Any] | None) -> Usage:
    """Return what an attempt's metadata say that it used."""
    kept = (metadata or {}).get(METADATA)
    if not isinstance(kept, Mapping):
        return _NONE
    known = {name: kept.get(name) for name in ("input_tokens", "output_tokens", "cost")}
    return Usage(calls=int(kept.get("calls") or 0), **known)


def as_metadata(usage: Usage) -> dict[str, Any]:
    """Return what is kept of it in an attempt's metadata: what is known."""
    return {name: value for name, value in asdict(usage).items() if value is not None}
