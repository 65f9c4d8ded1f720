"""One recorded event of an attempt: OpenTelemetry's span, and which attempt it belongs to."""

import base64
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict, WithJsonSchema
from pydantic_core import SchemaValidator, ValidationError, core_schema

from lightning_core.types.frozen import EMPTY, construct, freeze
from lightning_core.types.text import Text, well_formed, well_formed_value

if TYPE_CHECKING:
    from opentelemetry import trace as otel
    from opentelemetry.sdk.resources import Resource as SdkResource
    from opentelemetry.sdk.trace import Event as SdkEvent, ReadableSpan

AttributeValue: TypeAlias = (
    str | bool | int | float | bytes | Sequence["AttributeValue"] | Mapping[str, "AttributeValue"] | None
)
"""What OpenTelemetry 1.40 and later let through as an attribute's value."""

StatusCode = Literal["UNSET", "OK", "ERROR"]
"""OpenTelemetry's span status."""

MAX_SEQUENCE_ID = 2**52
"""The largest sequence id that a span may be given. Those that a store gives after it are exact in any JSON reader."""


def without_fraction(value: Any) -> Any:
    """Return an int for a float that has no fraction, and everything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Integer = Annotated[int, Strict(), BeforeValidator(without_fraction)]
"""An int, or a float without a fraction."""

_NUMBERS = frozenset({bool, int, float, type(None)})
_SCALARS = _NUMBERS | {str}
_WHOLE_NUMBERS = SchemaValidator(core_schema.list_schema(core_schema.int_schema(strict=True), strict=True))
"""Copies a list of tokens, of which there are thousands, in half of the time that it takes to look at their types."""


def plain_value(value: Any) -> Any:
    """Copy an attribute's value into JSON-like Python values.

    Sequences become lists or, where nothing in them can be changed, tuples; mappings become dicts; bytes become
    their base64 text, as in OTLP's JSON.

    Raises:
        TypeError: For a value that OpenTelemetry does not take either.
    """
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is list and value and type(value[0]) is int:
        try:
            return _WHOLE_NUMBERS.validate_python(value)
        except ValidationError:
            pass  # there is something else among them
    if (kind is tuple or kind is list) and _SCALARS.issuperset(map(type, value)):
        return value if kind is tuple else value.copy()
    if isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [plain_value(item) for item in value]
    raise TypeError(
        f"a span attribute cannot be a {kind.__name__}; allowed are str, bool, int, float, bytes, None, "
        "and sequences and string-keyed mappings of these"
    )


def plain_attributes(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Copy attributes so that neither side can change the other's.

    Raises:
        ValueError: Names the attribute whose value is not allowed.
    """
    if attributes is None:
        return {}
    if type(attributes) is not dict and not isinstance(attributes, Mapping):
        raise ValueError(f"attributes are a mapping of names to values; got a {type(attributes).__name__}")
    if _SCALARS.issuperset(map(type, attributes.values())):
        return dict(attributes)
    plain: dict[str, Any] = {}
    for key, value in attributes.items():
        if type(value) in _SCALARS:
            plain[key] = value
            continue
        try:
            plain[key] = plain_value(value)
        except TypeError as exc:
            raise ValueError(f"attribute {key!r}: {exc}") from exc
    return plain


def recordable_attributes(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Copy attributes as `plain_attributes` does, and replace what no text that is written down can hold.

    A lone surrogate becomes U+FFFD: one odd character in an answer should not cost the rollout.

    Raises:
        ValueError: Names the attribute whose value is not allowed.
    """
    if not attributes or not isinstance(attributes, Mapping):
        return plain_attributes(attributes)
    recordable: dict[str, Any] = {}
    for key, value in attributes.items():
        kind = type(value)
        if kind is str:
            value = value if value.isascii() else well_formed(value)
        elif kind not in _NUMBERS:
            try:
                value = _recordable_value(value)
            except TypeError as exc:
                raise ValueError(f"attribute {key!r}: {exc}") from exc
        if type(key) is str and not key.isascii():
            key = well_formed(key)
        recordable[key] = value
    return recordable


def _recordable_value(value: Any) -> Any:
    kind = type(value)
    if (kind is tuple or kind is list) and _NUMBERS.issuperset(map(type, value)):  # tokens: there are thousands
        return value if kind is tuple else value.copy()
    return well_formed_value(plain_value(value))


_OR_NULL = WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "null"}]}, mode="validation")
Attributes = Annotated[dict[str, Any], BeforeValidator(recordable_attributes), _OR_NULL, Field(default_factory=dict)]
"""Attribute name -> `AttributeValue`; a model keeps its own copy."""
FrozenAttributes = Annotated[
    dict[str, Any],
    BeforeValidator(recordable_attributes),
    AfterValidator(freeze),
    _OR_NULL,
    Field(default_factory=dict, validate_default=True),
]
"""The same, unchangeable, in what several spans may share."""
TraceState = Annotated[dict[str, str], AfterValidator(freeze)]


class SpanContext(BaseModel):
    """The identity of a span. Ids are lower-case hexadecimal: 32 digits for a trace, 16 for a span."""

    model_config = ConfigDict(frozen=True)

    trace_id: str
    span_id: str
    is_remote: bool = False
    trace_state: TraceState = Field(default_factory=lambda: EMPTY)

    @classmethod
    def from_opentelemetry(cls, src: "otel.SpanContext") -> "SpanContext":
        """Convert OpenTelemetry's value."""
        fields = {
            "trace_id": f"{src.trace_id:032x}",
            "span_id": f"{src.span_id:016x}",
            "is_remote": src.is_remote,
            "trace_state": freeze(dict(src.trace_state)) if src.trace_state else EMPTY,
        }
        return construct(cls, fields, _CONTEXT_FIELDS)


_CONTEXT_FIELDS = set(SpanContext.model_fields)


def _local_context(trace_id: str, span_id: str) -> SpanContext:
    if type(trace_id) is not str or type(span_id) is not str:
        return SpanContext(trace_id=trace_id, span_id=span_id)
    fields = {"trace_id": trace_id, "span_id": span_id, "is_remote": False, "trace_state": EMPTY}
    return construct(SpanContext, fields, _CONTEXT_FIELDS)


class TraceStatus(BaseModel):
    """Whether what the span covers went well."""

    model_config = ConfigDict(frozen=True)

    status_code: StatusCode
    description: Text | None = None

    @classmethod
    def from_opentelemetry(cls, src: "otel.Status") -> "TraceStatus":
        """Convert OpenTelemetry's value."""
        code = src.status_code.name
        return _STATUSES[code] if src.description is None else cls(status_code=code, description=src.description)


_STATUSES: dict[str, TraceStatus] = {code: TraceStatus(status_code=code) for code in get_args(StatusCode)}
"""Those without a description, which all spans share."""


class Event(BaseModel):
    """Something that happened at one moment of a span."""

    model_config = ConfigDict(frozen=True)

    name: Text
    attributes: FrozenAttributes
    timestamp: float | None = Field(default=None, strict=True)
    """Seconds since the epoch."""

    @classmethod
    def from_opentelemetry(cls, src: "SdkEvent") -> "Event":
        """Convert OpenTelemetry's value."""
        return cls(name=src.name, attributes=dict(src.attributes or {}), timestamp=_seconds(src.timestamp))


class Link(BaseModel):
    """A pointer from one span to another."""

    model_config = ConfigDict(frozen=True)

    context: SpanContext
    attributes: FrozenAttributes

    @classmethod
    def from_opentelemetry(cls, src: "otel.Link") -> "Link":
        """Convert OpenTelemetry's value."""
        return cls(context=SpanContext.from_opentelemetry(src.context), attributes=dict(src.attributes or {}))


class OtelResource(BaseModel):
    """What produced a span, in OpenTelemetry's sense of "resource" (a service, a process)."""

    model_config = ConfigDict(frozen=True)

    attributes: FrozenAttributes
    schema_url: str = ""

    @classmethod
    def from_opentelemetry(cls, src: "SdkResource") -> "OtelResource":
        """Convert OpenTelemetry's value."""
        return cls(attributes=dict(src.attributes), schema_url=src.schema_url or "")


_NO_RESOURCE = OtelResource(attributes={})


class SpanCoreFields(BaseModel):
    """A span without an identity: the fields to set when making one by hand. Times in seconds since the epoch."""

    name: Text
    status: TraceStatus = Field(default_factory=lambda: _STATUSES["OK"])
    attributes: Attributes
    start_time: float | None = None
    end_time: float | None = None


class Span(BaseModel):
    """One recorded event of an attempt. Times are in seconds since the epoch.

    Its fields can be changed, and so can its attributes. What several spans may share (status, context, resource,
    events, links) cannot: replace it by another one.
    """

    model_config = ConfigDict(extra="allow")

    rollout_id: str
    """The rollout that it belongs to."""
    attempt_id: str
    """The attempt that it belongs to."""
    sequence_id: Integer = Field(ge=0)
    """Orders the spans of one attempt, from 1; 0 asks the store to number it. A gap means nothing."""

    trace_id: str
    """One attempt may have several traces."""
    span_id: str
    """Unique within the attempt: the same id twice is the same span."""
    parent_id: str | None = None
    """The span that it is part of."""

    name: Text
    status: TraceStatus
    attributes: Attributes
    events: list[Event] = Field(default_factory=list)
    links: list[Link] = Field(default_factory=list)

    start_time: float | None = Field(default=None, strict=True)
    end_time: float | None = Field(default=None, strict=True)

    context: SpanContext | None = None
    parent: SpanContext | None = None
    resource: OtelResource

    @classmethod
    def from_opentelemetry(
        cls,
        src: "ReadableSpan",
        rollout_id: str,
        attempt_id: str,
        sequence_id: int,
        *,
        resource: OtelResource | None = None,
    ) -> "Span":
        """Convert a finished OpenTelemetry span.

        Args:
            src: The span.
            rollout_id: The rollout that it belongs to.
            attempt_id: The attempt that it belongs to.
            sequence_id: Its place among the attempt's spans, from 1; 0 asks the store to number it.
            resource: Its resource, if that is converted already.
        """
        context = src.get_span_context()
        span_context = SpanContext.from_opentelemetry(context) if context else None
        parent = SpanContext.from_opentelemetry(src.parent) if src.parent else None
        return cls(
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            sequence_id=sequence_id,
            trace_id=span_context.trace_id if span_context else "0" * 32,
            span_id=span_context.span_id if span_context else "0" * 16,
            parent_id=parent.span_id if parent else None,
            name=src.name,
            status=TraceStatus.from_opentelemetry(src.status),
            attributes=dict(src.attributes or {}),
            events=[Event.from_opentelemetry(event) for event in src.events],
            links=[Link.from_opentelemetry(link) for link in src.links],
            start_time=_seconds(src.start_time),
            end_time=_seconds(src.end_time),
            context=span_context,
            parent=parent,
            resource=OtelResource.from_opentelemetry(src.resource) if resource is None else resource,
        )

    @classmethod
    def from_attributes(
        cls,
        *,
        attributes: Mapping[str, AttributeValue],
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        sequence_id: int | None = None,
        name: str | None = None,
        trace_id: str | None = None,
        span_id: str | None = None,
        parent_id: str | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
        resource: OtelResource | None = None,
        status: TraceStatus | None = None,
    ) -> "Span":
        """Make a span from its attributes; ids that are not given are random, its status is OK."""
        trace_id = trace_id or secrets.token_hex(16)
        span_id = span_id or secrets.token_hex(8)
        return cls(
            rollout_id=rollout_id or "",
            attempt_id=attempt_id or "",
            sequence_id=sequence_id or 0,
            trace_id=trace_id,
            span_id=span_id,
            parent_id=parent_id,
            name=name or "agentlightning.virtual",
            status=status or _STATUSES["OK"],
            attributes=dict(attributes),
            start_time=start_time,
            end_time=end_time,
            context=_local_context(trace_id, span_id),
            parent=_local_context(trace_id, parent_id) if parent_id else None,
            resource=resource or _NO_RESOURCE,
        )

    @classmethod
    def from_core_fields(
        cls,
        core: SpanCoreFields,
        *,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        sequence_id: int | None = None,
    ) -> "Span":
        """Give a hand-made span an identity; it starts now if it does not say when."""
        return cls.from_attributes(
            attributes=core.attributes,
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            sequence_id=sequence_id,
            name=core.name,
            start_time=time.time() if core.start_time is None else core.start_time,
            end_time=core.end_time,
            status=core.status,
        )


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1_000_000_000
