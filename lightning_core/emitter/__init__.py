"""What an agent calls to say how it went, and how to read that from a trace."""

from lightning_core.emitter.attributes import flatten_attributes
from lightning_core.emitter.emission import (
    SpanRecordingContext,
    SpanSink,
    emit_exception,
    get_active_sink,
    with_active_sink,
)
from lightning_core.emitter.links import (
    LinkMatch,
    extract_links_from_attributes,
    extract_tags_from_attributes,
    make_link_attributes,
    make_tag_attributes,
    query_linked_spans,
)
from lightning_core.emitter.message import (
    emit_annotation,
    emit_message,
    emit_object,
    get_message_value,
    get_object_value,
)
from lightning_core.emitter.operations import OperationContext, operation
from lightning_core.emitter.reward import emit_reward, reward
from lightning_core.rewards import (
    NamedReward,
    SpanLike,
    find_final_reward,
    find_reward_spans,
    get_reward_value,
    get_rewards_from_span,
    is_reward_span,
)

__all__ = [
    "LinkMatch",
    "NamedReward",
    "OperationContext",
    "SpanLike",
    "SpanRecordingContext",
    "SpanSink",
    "emit_annotation",
    "emit_exception",
    "emit_message",
    "emit_object",
    "emit_reward",
    "extract_links_from_attributes",
    "extract_tags_from_attributes",
    "find_final_reward",
    "find_reward_spans",
    "flatten_attributes",
    "get_active_sink",
    "get_message_value",
    "get_object_value",
    "get_reward_value",
    "get_rewards_from_span",
    "is_reward_span",
    "make_link_attributes",
    "make_tag_attributes",
    "operation",
    "query_linked_spans",
    "reward",
    "with_active_sink",
]
