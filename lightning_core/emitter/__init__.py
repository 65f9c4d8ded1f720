"""What an agent calls to say how it went, and how to read that from a trace."""

from lightning_core.emitter.active import SpanSink, get_active_sink, with_active_sink
from lightning_core.emitter.exception import emit_exception
from lightning_core.emitter.message import emit_message, get_message_value
from lightning_core.emitter.reward import (
    NamedReward,
    emit_reward,
    find_final_reward,
    find_reward_spans,
    get_reward_value,
    get_rewards_from_span,
    is_reward_span,
)
from lightning_core.emitter.span_like import SpanLike

__all__ = [
    "NamedReward",
    "SpanLike",
    "SpanSink",
    "emit_exception",
    "emit_message",
    "emit_reward",
    "find_final_reward",
    "find_reward_spans",
    "get_active_sink",
    "get_message_value",
    "get_reward_value",
    "get_rewards_from_span",
    "is_reward_span",
    "with_active_sink",
]
