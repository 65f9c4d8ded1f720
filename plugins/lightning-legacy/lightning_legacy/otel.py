"""Helpers for attributes and tracers, as agentlightning 0.3 has them in `utils.otel`."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opentelemetry import trace

from lightning_core.adapter.attributes import unflatten
from lightning_core.emitter.emission import exception_attributes as format_exception_attributes

__all__ = [
    "check_attributes_sanity",
    "filter_and_unflatten_attributes",
    "filter_attributes",
    "flatten_attributes",
    "format_exception_attributes",
    "full_qualified_name",
    "get_tracer",
    "get_tracer_provider",
    "sanitize_attribute_value",
    "sanitize_attributes",
    "sanitize_list_attribute_sanity",
    "unflatten_attributes",
]

logger = logging.getLogger(__name__)

_PRIMITIVES = (str, bool, int, float)


def full_qualified_name(obj: type) -> str:
    """Return `module.Name`; of a builtin its name."""
    return obj.__qualname__ if obj.__module__ == "builtins" else f"{obj.__module__}.{obj.__qualname__}"


def get_tracer_provider(inspect: bool = True) -> Any:
    """Return the provider of the active tracer; outside of a trace OpenTelemetry's global one.

    Raises:
        RuntimeError: When there is neither.
    """
    from lightning_core.tracer import OtelTracer, get_active_tracer  # late: it takes the OpenTelemetry SDK with it

    active = get_active_tracer()
    if isinstance(active, OtelTracer):
        return active.provider
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        raise RuntimeError("no tracer is active here, and OpenTelemetry has no provider; enter a trace first")
    return provider


def get_tracer(use_active_span_processor: bool = True) -> trace.Tracer:
    """Return an OpenTelemetry tracer: of `get_tracer_provider`, or one whose spans go nowhere.

    Raises:
        RuntimeError: When there is no provider.
    """
    provider = get_tracer_provider()
    if not use_active_span_processor:
        from opentelemetry.sdk.trace import TracerProvider

        provider = TracerProvider(shutdown_on_exit=False)
    tracer: trace.Tracer = provider.get_tracer("agentlightning")
    return tracer


def filter_attributes(attributes: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return those named `prefix`, or `prefix.` and more."""
    return {name: value for name, value in attributes.items() if name == prefix or name.startswith(f"{prefix}.")}


def filter_and_unflatten_attributes(attributes: Mapping[str, Any], prefix: str) -> Any:
    """Return what is under a prefix as nested mappings and lists; an empty mapping for nothing.

    Raises:
        ValueError: When the prefix itself is an attribute.
    """
    found = filter_attributes(attributes, prefix)
    if prefix in found:
        raise ValueError(f"{prefix!r} is an attribute itself, so nothing is under it")
    return unflatten_attributes({name[len(prefix) + 1 :]: value for name, value in found.items()})


def flatten_attributes(nested_data: Any, *, expand_leaf_lists: bool = False) -> dict[str, Any]:
    """Join nested names, and positions in lists, with dots.

    Args:
        nested_data: Mappings and lists.
        expand_leaf_lists: Whether lists of primitives of one type are taken apart, too.

    Raises:
        ValueError: When a name is not a string.
    """
    return dict(_leaves(nested_data, "", expand_leaf_lists))


def _leaves(value: Any, name: str, expand: bool) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        items: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, list) and (expand or not name or not _is_leaf(value)):
        items = [(str(position), item) for position, item in enumerate(value)]
    else:
        yield name, value
        return
    for key, item in items:
        if not isinstance(key, str):
            raise ValueError(f"names are strings; got {key!r} ({type(key).__name__}) in {name!r}")
        yield from _leaves(item, f"{name}.{key}" if name else key, expand)


def _is_leaf(items: list[Any]) -> bool:
    kinds = {next((kind for kind in (bool, int, float, str) if isinstance(item, kind)), None) for item in items}
    return len(kinds) == 1 and None not in kinds


def unflatten_attributes(flat_data: Mapping[str, Any]) -> Any:
    """Undo `flatten_attributes`: names that count from 0 without a gap become a list."""
    return unflatten(flat_data.items()) if flat_data else {}


def sanitize_attribute_value(object: Any, force: bool = True) -> Any:
    """Return a value that an attribute can have: primitives and lists of one type as they are, else JSON.

    Raises:
        ValueError: Without `force`, when it is not JSON either.
    """
    if isinstance(object, _PRIMITIVES):
        return object
    if isinstance(object, list):
        try:
            return sanitize_list_attribute_sanity(object)
        except ValueError as exc:
            logger.warning("lightning.list_written_as_json: %s", exc)
    try:
        return json.dumps(object, default=str if force else None)
    except (TypeError, ValueError) as exc:
        raise ValueError(f"a {type(object).__name__} cannot be written as JSON: {exc}") from exc


def sanitize_attributes(attributes: Mapping[str, Any], force: bool = True) -> dict[str, Any]:
    """Return attributes that a span can have; see `sanitize_attribute_value`.

    Raises:
        ValueError: Names the attribute that cannot be one.
    """
    sane: dict[str, Any] = {}
    for name, value in attributes.items():
        try:
            sane[name] = sanitize_attribute_value(value, force)
        except ValueError as exc:
            raise ValueError(f"attribute {name!r}: {exc}") from exc
    return sane


def sanitize_list_attribute_sanity(maybe_list: Sequence[Any]) -> list[Any]:
    """Return a list of one type: of strings, booleans, whole numbers or numbers, the last two converted.

    Raises:
        ValueError: For anything else.
    """
    kinds: tuple[tuple[type, tuple[type, ...]], ...] = (
        (str, (str,)),
        (bool, (bool,)),
        (int, (bool, int)),
        (float, (bool, int, float)),
    )
    for kind, accepted in kinds:
        if all(isinstance(item, accepted) for item in maybe_list):
            return [kind(item) for item in maybe_list]
    names = ", ".join(sorted({type(item).__name__ for item in maybe_list}))
    raise ValueError(f"a list holds one type of primitive values; this one has {names}")


def check_attributes_sanity(attributes: Mapping[Any, Any]) -> None:
    """Check that these are attributes that a span can have.

    Raises:
        ValueError: When they are not; names the attribute.
    """
    for name, value in attributes.items():
        if not isinstance(name, str):
            raise ValueError(f"names are strings; got {name!r} ({type(name).__name__})")
        if isinstance(value, list):
            try:
                sanitize_list_attribute_sanity(value)
            except ValueError as exc:
                raise ValueError(f"attribute {name!r}: {exc}") from exc
        elif not isinstance(value, _PRIMITIVES):
            raise ValueError(f"attribute {name!r} is a {type(value).__name__}; it is a primitive or a list of them")
