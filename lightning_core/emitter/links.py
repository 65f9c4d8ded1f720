"""Links from a span to others, by what those have: they may not exist yet, and may be several."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from opentelemetry.trace import format_span_id, format_trace_id

from lightning_core.rewards import SpanLike, listed
from lightning_core.semconv import LightningSpanAttributes, LinkAttributes

_TAG_PREFIX = LightningSpanAttributes.TAG.value


def make_tag_attributes(tags: Sequence[str]) -> dict[str, Any]:
    """Make the attributes that tag a span: for `emit_annotation`, or as `attributes` of any emitter.

    Args:
        tags: Any words, such as `["reward.extrinsic", "model:small"]`.

    Raises:
        TypeError: When a tag is not a string, or `tags` is one.
    """
    if isinstance(tags, str):
        raise TypeError(f"tags are a list of strings, got the string {tags!r}; put it into a list")
    for tag in tags:
        if not isinstance(tag, str):
            raise TypeError(f"a tag must be a str, got {tag!r} ({type(tag).__name__})")
    return {f"{_TAG_PREFIX}.{position}": tag for position, tag in enumerate(tags)}


def extract_tags_from_attributes(attributes: Mapping[str, Any]) -> list[str]:
    """Read the tags of a span from its attributes, in their order; none when it has none.

    Raises:
        ValueError: When a tag is not a string.
    """
    whole = attributes.get(_TAG_PREFIX)
    if whole is None:
        tags = [attributes[name] for name in listed(attributes, _TAG_PREFIX)]
    else:
        tags = list(whole) if isinstance(whole, (list, tuple)) else [whole]
    for tag in tags:
        if not isinstance(tag, str):
            raise ValueError(f"{_TAG_PREFIX!r} holds {tag!r} ({type(tag).__name__}), where a str belongs")
    return tags


SpanT = TypeVar("SpanT", bound=SpanLike)

_PREFIX = LightningSpanAttributes.LINK.value
_KEY = LinkAttributes.KEY_MATCH.value
_VALUE = LinkAttributes.VALUE_MATCH.value


@dataclass(frozen=True, slots=True)
class LinkMatch:
    """What a linked span has."""

    key_match: str
    """The name of an attribute; `trace_id` and `span_id` mean the span's own ids."""
    value_match: str
    """The value of that attribute."""


def make_link_attributes(links: Mapping[str, str]) -> dict[str, Any]:
    """Make the attributes that link a span to others: for `emit_annotation`, or as `attributes` of any emitter.

    Args:
        links: What the linked spans have, such as `{"gen_ai.response.id": "resp-1"}` or `{"span_id": "00f067aa..."}`.

    Raises:
        TypeError: When a name or a value is not a string.
    """
    attributes: dict[str, Any] = {}
    for position, (key, value) in enumerate(links.items()):
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"a link needs two strings, an attribute's name and its value, got {key!r} and {value!r}")
        attributes[f"{_PREFIX}.{position}.{_KEY}"] = key
        attributes[f"{_PREFIX}.{position}.{_VALUE}"] = value
    return attributes


def extract_links_from_attributes(attributes: Mapping[str, Any]) -> list[LinkMatch]:
    """Read the links of a span from its attributes, in their order; none when it has none.

    Raises:
        ValueError: When a link has no name or no value.
    """
    links = []
    for entry in listed(attributes, _PREFIX, _KEY, _VALUE):
        key, value = attributes.get(f"{entry}.{_KEY}"), attributes.get(f"{entry}.{_VALUE}")
        if not isinstance(key, str) or not isinstance(value, str):
            raise ValueError(f"{entry!r} is not a link: {_KEY} {key!r}, {_VALUE} {value!r}; both must be strings")
        links.append(LinkMatch(key, value))
    return links


def query_linked_spans(spans: Sequence[SpanT], links: Sequence[LinkMatch]) -> list[SpanT]:
    """Pick the spans that have all of what the links say, in the order given; without links, that is all of them.

    Args:
        spans: Where to look: `lightning_core.types.Span` or OpenTelemetry's `ReadableSpan`.
        links: What `extract_links_from_attributes` gave.
    """
    return [span for span in spans if all(_value(span, link.key_match) == link.value_match for link in links)]


def _value(span: SpanLike, key: str) -> Any:
    if key not in ("trace_id", "span_id"):
        return (span.attributes or {}).get(key)
    get_span_context = getattr(span, "get_span_context", None)
    if get_span_context is None:
        return getattr(span, key, None)
    context = get_span_context()
    if context is None:
        return None
    return format_trace_id(context.trace_id) if key == "trace_id" else format_span_id(context.span_id)
