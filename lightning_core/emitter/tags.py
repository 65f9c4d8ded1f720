"""Tags of a span: a list of free words."""

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_core.emitter.listed import listed
from lightning_core.semconv import LightningSpanAttributes

_PREFIX = LightningSpanAttributes.TAG.value


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
    return {f"{_PREFIX}.{position}": tag for position, tag in enumerate(tags)}


def extract_tags_from_attributes(attributes: Mapping[str, Any]) -> list[str]:
    """Read the tags of a span from its attributes, in their order; none when it has none.

    Raises:
        ValueError: When a tag is not a string.
    """
    whole = attributes.get(_PREFIX)
    if whole is None:
        tags = [attributes[name] for name in listed(attributes, _PREFIX)]
    else:
        tags = list(whole) if isinstance(whole, (list, tuple)) else [whole]
    for tag in tags:
        if not isinstance(tag, str):
            raise ValueError(f"{_PREFIX!r} holds {tag!r} ({type(tag).__name__}), where a str belongs")
    return tags
