"""Names of spans and attributes: those of agentlightning 0.3, so that traces of either can be read by both."""

from enum import Enum

AGL_ANNOTATION = "agentlightning.annotation"
"""A span that says something about a rollout or a part of it: rewards, tags, metadata."""

AGL_MESSAGE = "agentlightning.message"
"""A span that carries a text, for people or for an algorithm to read."""

AGL_OBJECT = "agentlightning.object"
"""A span that carries a value."""

AGL_EXCEPTION = "agentlightning.exception"
"""A span that carries an exception, under OpenTelemetry's `exception.*` attributes."""

AGL_OPERATION = "agentlightning.operation"
"""A span around a function or a block."""

AGL_REWARD = "agentlightning.reward"
"""A span around the computation of a reward."""

AGL_VIRTUAL = "agentlightning.virtual"
"""A span that was derived from others."""


class LightningResourceAttributes(Enum):
    """Resource attributes, by which a span from outside says where it belongs."""

    ROLLOUT_ID = "agentlightning.rollout_id"
    ATTEMPT_ID = "agentlightning.attempt_id"
    SPAN_SEQUENCE_ID = "agentlightning.span_sequence_id"
    TRACER_NAME = "agentlightning.tracer.name"


class LightningSpanAttributes(Enum):
    """Span attributes."""

    REWARD = "agentlightning.reward"
    """Prefix of a list of rewards: `agentlightning.reward.0.name`, `agentlightning.reward.0.value`, ..."""
    LINK = "agentlightning.link"
    """Prefix of a list of links to other spans, by attribute."""
    TAG = "agentlightning.tag"
    """Prefix of a list of tags."""
    MESSAGE_BODY = "agentlightning.message.body"
    OBJECT_TYPE = "agentlightning.object.type"
    """Fully qualified name of the value's type."""
    OBJECT_LITERAL = "agentlightning.object.literal"
    """The value, where it is a plain one."""
    OBJECT_JSON = "agentlightning.object.json"
    """The value as JSON, where it is not."""
    REPORTED = "agentlightning.reported"
    """On each span that was written with the key of an attempt: `live`, or `late` after the attempt's end."""
    OPERATION_NAME = "agentlightning.operation.name"
    OPERATION_INPUT = "agentlightning.operation.input"
    OPERATION_OUTPUT = "agentlightning.operation.output"


class RewardAttributes(Enum):
    """What each reward of the list under `LightningSpanAttributes.REWARD` has; the first is the primary one."""

    REWARD_NAME = "name"
    REWARD_VALUE = "value"


class LinkAttributes(Enum):
    """What each link of the list under `LightningSpanAttributes.LINK` has."""

    KEY_MATCH = "key_match"
    """The attribute that the linked span has (`trace_id` and `span_id` mean the span's own ids)."""
    VALUE_MATCH = "value_match"
    """The value of that attribute."""
