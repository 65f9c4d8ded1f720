"""What an agent may return."""

from typing import TYPE_CHECKING, Union

from lightning_core.types.span import Span, SpanCoreFields

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

# Not with `|`: the SDK is not imported for the sake of a name.
RolloutRawResult = Union[None, float, dict[str, float], list["ReadableSpan"], list[Span], list[SpanCoreFields]]  # noqa: UP007
"""What an agent's method returns: nothing, the reward, named rewards, or spans; see `LitAgent`."""
