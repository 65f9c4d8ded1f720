"""What all emitters do once they know what to say."""

import time
from collections.abc import Mapping
from typing import Any

from lightning_core.emitter.active import SpanSink, get_active_sink
from lightning_core.emitter.attributes import flatten_attributes
from lightning_core.errors import NoActiveTracer
from lightning_core.types import SpanCoreFields


def require_active_sink(emitter: str) -> SpanSink:
    """Find who takes what is emitted here.

    Args:
        emitter: The function that people call, for the error.

    Raises:
        NoActiveTracer: When there is nobody.
    """
    sink = get_active_sink()
    if sink is None:
        raise NoActiveTracer(
            f"{emitter} found no active tracer; call it from an agent while its rollout runs, or inside of "
            "`async with tracer.trace_context()` (a thread that was started before does not know the trace), "
            "or pass propagate=False to make the span without recording it"
        )
    return sink


def emit_span(
    name: str,
    own: Mapping[str, Any],
    extra: Mapping[str, Any] | None = None,
    *,
    reserved: str = "",
    propagate: bool,
    emitter: str,
) -> SpanCoreFields:
    """Give a span to the active tracer, or only make it.

    Args:
        name: The span's name.
        own: The attributes that the emitter makes; flat.
        extra: The attributes that its caller adds; may be nested.
        reserved: The name, or the first part of the names, that only the emitter writes.
        propagate: False to make the span and give it to nobody.
        emitter: The function that people call, for the error.

    Raises:
        NoActiveTracer: When there is nobody to give it to.
        ValueError: When `extra` holds something that no attribute can be, or a reserved name.
    """
    attributes = dict(own)
    if extra:
        added = flatten_attributes(extra)
        for attribute in added:
            if attribute == reserved or attribute.startswith(f"{reserved}."):
                raise ValueError(f"only {emitter} itself writes {attribute!r}; leave it out of `attributes`")
        attributes |= added
    if not propagate:
        now = time.time()
        return SpanCoreFields(name=name, attributes=attributes, start_time=now, end_time=now)
    return require_active_sink(emitter).create_span(name, attributes)
