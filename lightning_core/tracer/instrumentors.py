"""OpenTelemetry's instrumentors of model clients and of threads: on while any tracer needs them, once a process.

An instrumentor is an installed distribution's entry point. It patches a client library, so that each call becomes a
span. Several distributions may offer one for the same library, under the same name; one of them is used. To load an
instrumentor imports its client, which takes a second for some; so that of a client in `CLIENTS` which was not asked for
by its name is loaded when the program imports the client.

OpenTelemetry's instrumentation of `threading` carries the context into the threads and executors that agents start. It
covers `Thread` and `Timer`, and `ThreadPoolExecutor` (so `asyncio.to_thread` and `run_in_executor` too). It does not
reach a subclass of `Thread` with a `run` of its own that does not call `super().run()`.
"""

import functools
import importlib.metadata
import logging
import os
import sys
import threading
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

from opentelemetry.instrumentation.dependencies import DependencyConflictError
from opentelemetry.instrumentation.threading import ThreadingInstrumentor
from wrapt import register_post_import_hook  # type: ignore[import-untyped]

from lightning_core.errors import TracerError
from lightning_core.registry import did_you_mean
from lightning_core.tracer.provider import RoutingProvider

logger = logging.getLogger(__name__)

GROUP = "opentelemetry_instrumentor"
"""The entry-point group in which OpenTelemetry's instrumentors are found."""

GENAI = "genai"
"""Stands for all names in `GENAI_INSTRUMENTORS` that are installed."""

CLIENTS: Mapping[str, tuple[str, frozenset[str]]] = {
    "openai": ("opentelemetry-instrumentation-openai", frozenset({"openai", "openai_v2"})),
    "anthropic": ("opentelemetry-instrumentation-anthropic", frozenset({"anthropic"})),
    "google.genai": ("opentelemetry-instrumentation-google-genai", frozenset({"google_genai"})),
    "boto3": ("opentelemetry-instrumentation-bedrock", frozenset({"boto3"})),
    "cohere": ("opentelemetry-instrumentation-cohere", frozenset({"cohere"})),
    "groq": ("opentelemetry-instrumentation-groq", frozenset({"groq"})),
    "litellm": ("opentelemetry-instrumentation-litellm", frozenset({"litellm", "openai", "openai_v2"})),
    "mistralai": ("opentelemetry-instrumentation-mistralai", frozenset({"mistralai"})),
    "ollama": ("opentelemetry-instrumentation-ollama", frozenset({"ollama"})),
    "together": ("opentelemetry-instrumentation-together", frozenset({"together"})),
}
"""By the module of a model client: the distribution that records its calls, and the instrumentors that do."""

GENAI_INSTRUMENTORS = frozenset[str]().union(
    *(names for _, names in CLIENTS.values()),
    ("alephalpha", "crewai", "google_cloud_aiplatform", "google_generativeai", "haystack", "langchain", "llama_index"),
    ("openai_agents", "replicate", "sagemaker", "transformers", "vertexai", "voyageai", "watsonx", "writer"),
)
"""Entry-point names of instrumentors of model clients and agent frameworks, with `_` for `-`."""

_CLIENT_OF: Mapping[str, str] = {name: module for module, (_, names) in [*CLIENTS.items()][::-1] for name in names}
"""By instrumentor, the module whose import it waits for."""

_RECORD_MESSAGES: Mapping[str, str] = {
    "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY",
}
"""Without these, OpenTelemetry's own instrumentors leave out what the model was asked and what it said."""


_MAX_TEXTS = 1000
_known_texts: set[str] = set()


def _is_new(record: logging.LogRecord) -> bool:
    """Let each warning pass once that OpenTelemetry has for each call, as of an option that was given no value."""
    text = record.getMessage()
    is_new = text not in _known_texts and len(_known_texts) < _MAX_TEXTS
    _known_texts.add(text)
    return is_new


_LATE_SECONDS = 10.0

_lock = threading.RLock()  # an instrumentor may import the client of another one
_users: dict[str, int] = defaultdict(int)
_running: dict[str, RoutingProvider] = {}
"""By name, where the spans of the instrumentors go that are on."""
_providers: dict[type, RoutingProvider] = {}
"""The same by the class of each instrumentor that was ever turned on here.

Without a user they stay in place, and make no spans: not every instrumentor takes all of its patches back, so that one
which is taken out and put in again would wrap the client's functions once more each time.
"""
_awaited: set[str] = set()
"""Those that start when their client is imported."""
_variables_set: list[str] = []

_Loaded = tuple[list[tuple[EntryPoint, Any]], list[tuple[EntryPoint, Exception]]]
"""The instrumentors of one name, and those that could not be loaded."""


def unrecorded_clients() -> dict[str, str]:
    """Return the model clients that this process has imported and no installed instrumentor records.

    Returns:
        By the client's module, the distribution to install.
    """
    offers = _offers()
    return {
        module: distribution
        for module, (distribution, names) in CLIENTS.items()
        if module in sys.modules and names.isdisjoint(offers)
    }


def start_instrumenting(names: Iterable[str]) -> list[str]:
    """Turn instrumentors on, unless they are on already; some wait for their client's import.

    While any is on, the environment asks them to record messages, unless it says otherwise.

    Args:
        names: Names of entry points, and `genai`. An instrumentor that is meant by `genai` alone and does not work is
            logged and left out.

    Returns:
        What is to be given to `stop_instrumenting`.

    Raises:
        TracerError: When one that is named is not installed, or does not work; then none is turned on.
    """
    logging.getLogger("opentelemetry.attributes").addFilter(_is_new)
    wanted = {_normal(name) for name in names}
    offers = _offers()
    required = wanted - {GENAI}
    for name in sorted(required - offers.keys()):
        raise TracerError(
            f"no instrumentor named {name!r} is installed; installed: {', '.join(sorted(offers)) or 'none'}"
            f"{did_you_mean(name, offers)}"
        )
    optional = (GENAI_INSTRUMENTORS & offers.keys()) - required if GENAI in wanted else set()
    later = {name for name in optional if name in _CLIENT_OF and _CLIENT_OF[name] not in sys.modules}
    # Before the lock: another thread may import the same client, and then wait for the lock.
    loaded = {name: _load(offers[name]) for name in (required | optional) - later}
    held: list[str] = []
    with _lock:
        try:
            for name in sorted(required | optional):
                if name in later:
                    _ask_for_messages()
                elif not _start(name, loaded[name], required=name in required):
                    continue
                _users[name] += 1
                held.append(name)
        except BaseException:
            _release(held)
            raise
        new = later - _awaited
        _awaited.update(new)
    for name in new:
        register_post_import_hook(functools.partial(_start_late, name), _CLIENT_OF[name])
    return held


def stop_instrumenting(held: Iterable[str]) -> None:
    """Turn off the unused ones, except those that the application had turned on.

    A library stays patched, and makes no spans from then on.
    """
    with _lock:
        _release(held)


def _start_late(name: str, client: ModuleType) -> None:
    """Turn on what has waited for this client, which was imported just now."""
    loaded = _load(_offers().get(name, ()))
    # The caller holds the lock of an import, for which a holder of this lock may wait.
    if not _lock.acquire(timeout=_LATE_SECONDS):
        logger.warning("lightning.instrumentor_left_out name=%s cause=others start for too long", name)
        return
    try:
        _awaited.discard(name)
        if _users.get(name):
            _start(name, loaded, required=False)
    finally:
        _lock.release()


def _load(offers: Iterable[EntryPoint]) -> _Loaded:
    instrumentors: list[tuple[EntryPoint, Any]] = []
    failures: list[tuple[EntryPoint, Exception]] = []
    for offer in offers:
        try:
            with _deprecations_ignored():
                instrumentors.append((offer, offer.load()()))
        except Exception as exc:
            failures.append((offer, exc))
    return instrumentors, failures


def _start(name: str, loaded: _Loaded, *, required: bool) -> bool:
    """Return whether calls are recorded from now on: by an instrumentor of ours, or by one of the application."""
    instrumentors, failures = loaded[0], list(loaded[1])
    for _, instrumentor in instrumentors:
        if getattr(instrumentor, "is_instrumented_by_opentelemetry", False):
            if (known := _providers.get(type(instrumentor))) is not None:
                _ask_for_messages()
                known.open()
                _running[name] = known
            return True
    _ask_for_messages()
    for offer, instrumentor in instrumentors:
        provider = RoutingProvider()
        try:
            with _deprecations_ignored():
                instrumentor.instrument(tracer_provider=provider, raise_exception_on_conflict=True)
        except Exception as exc:
            # It may have patched a part already.
            provider.close()
            failures.append((offer, exc))
        else:
            _running[name] = _providers[type(instrumentor)] = provider
            return True
    _restore_environment()
    if required:
        offer, cause = failures[0]
        raise TracerError(f"instrumentor {name!r} of {_origin(offer)} cannot be used: {cause!r}") from cause
    for offer, failure in failures:
        level = logging.DEBUG if _lacks_its_client(name, failure) else logging.WARNING
        logger.log(
            level,
            "lightning.instrumentor_left_out name=%s distribution=%s cause=%r; what it would record is not recorded",
            name,
            _origin(offer),
            failure,
        )
    return False


def _lacks_its_client(name: str, failure: Exception) -> bool:
    """Whether an instrumentor's client library is not installed, so that there is nothing to record."""
    if isinstance(failure, ModuleNotFoundError):
        return (failure.name or "").partition(".")[0] == name
    return isinstance(failure, DependencyConflictError)


@contextmanager
def _deprecations_ignored() -> Iterator[None]:
    # What an instrumentor should no longer do is its author's business, not that of the user who runs an agent.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _release(held: Iterable[str]) -> None:
    for name in held:
        _users[name] -= 1
        if _users[name] == 0 and name in _running:
            _running.pop(name).close()
    _restore_environment()


def _ask_for_messages() -> None:
    for variable, value in _RECORD_MESSAGES.items():
        if variable not in os.environ:
            os.environ[variable] = value
            _variables_set.append(variable)


def _restore_environment() -> None:
    if any(_users.values()):
        return
    while _variables_set:
        variable = _variables_set.pop()
        if os.environ.get(variable) == _RECORD_MESSAGES[variable]:
            del os.environ[variable]


def _offers() -> dict[str, list[EntryPoint]]:
    """Return what is installed, by name; of several for one name, OpenTelemetry's own come first."""
    offers: dict[str, list[EntryPoint]] = defaultdict(list)
    for entry_point in dict.fromkeys(importlib.metadata.entry_points(group=GROUP)):
        offers[_normal(entry_point.name)].append(entry_point)
    for rivals in offers.values():
        rivals.sort(key=lambda each: (not _origin(each).startswith("opentelemetry-"), _origin(each)))
    return offers


def _origin(entry_point: EntryPoint) -> str:
    return entry_point.dist.name if entry_point.dist is not None else "an unknown distribution"


def _normal(name: str) -> str:
    return name.lower().replace("-", "_")


_carrying_users = 0
_carrying_is_ours = False


def start_carrying_context() -> None:
    """Have threads and executors carry the context of the caller that starts them, unless they do already."""
    global _carrying_users, _carrying_is_ours
    with _lock:
        _carrying_users += 1
        instrumentor = ThreadingInstrumentor()
        if _carrying_users == 1 and not instrumentor.is_instrumented_by_opentelemetry:
            instrumentor.instrument()
            _carrying_is_ours = True


def stop_carrying_context() -> None:
    """Undo `start_carrying_context` after its last user, unless the application had turned it on."""
    global _carrying_users, _carrying_is_ours
    with _lock:
        _carrying_users -= 1
        if _carrying_users == 0 and _carrying_is_ours:
            _carrying_is_ours = False
            instrumentor = ThreadingInstrumentor()
            if instrumentor.is_instrumented_by_opentelemetry:
                instrumentor.uninstrument()
            # opentelemetry-instrumentation-threading<=0.66b1 leaves a wrapper of Thread.start on Timer, which
            # has no start of its own.
            if "start" in vars(threading.Timer):
                del threading.Timer.start
