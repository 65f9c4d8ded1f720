"""Each name of agentops that is not public: it is there, and does what is needed, in the version that is pinned."""

import builtins
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from agentops_parts import CALL, USER
from lightning_agentops import AgentOpsTracer, library
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

NAMES = [(module, name) for module, names in library.NAMES.items() for name in names]


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(spans: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider


def test_the_version_is_the_known_one() -> None:
    assert version("agentops") == library.KNOWN_VERSION


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_a_name_is_there(module: str, name: str) -> None:
    assert getattr(library.part(module), name) is not None or name == "provider"


def test_its_tracer_asks_the_global_provider_so_it_is_told_another() -> None:
    core = library.part(library.CORE).tracer
    assert [name for name in library.TRACER_NAMES if not hasattr(core, name)] == []
    assert core.initialized is core._initialized is False
    with AgentOpsTracer().lifespan():
        assert core.initialized
        assert core.get_tracer("any")._provider is core.provider
    assert (core.initialized, core.provider) == (False, None)


def test_instrument_all_instruments_what_is_imported_and_watches_imports() -> None:
    instrumentation = library.part(library.INSTRUMENTATION)
    with AgentOpsTracer().lifespan():
        keys = [each._agentops_instrumented_package_key for each in instrumentation._active_instrumentors]
        assert "openai" in keys
        assert set(keys) <= instrumentation.TARGET_PACKAGES
        assert builtins.__import__ is instrumentation._import_monitor
        assert instrumentation._has_agentic_library is False
        assert instrumentation._instrumenting_packages == set()
    assert instrumentation._active_instrumentors == []
    assert builtins.__import__ is instrumentation._original_builtins_import


def test_frameworks_take_model_clients_out_of_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    instrumentation = library.part(library.INSTRUMENTATION)
    assert "openai" in instrumentation.PROVIDERS
    client = SimpleNamespace(_agentops_instrumented_package_key="openai", uninstrument=lambda: None)
    monkeypatch.setattr(instrumentation, "_active_instrumentors", [client])
    instrumentation._uninstrument_providers()
    assert instrumentation._active_instrumentors == []
    monkeypatch.setattr(instrumentation, "_has_agentic_library", True)
    instrumentation._perform_instrumentation("openai")  # does nothing then
    assert instrumentation._active_instrumentors == []


def test_a_module_of_somebody_else_is_told_apart() -> None:
    is_installed = library.part(library.INSTRUMENTATION)._is_installed_package
    assert is_installed(pytest, "agents")
    assert not is_installed(SimpleNamespace(__file__=__file__), "agents")


def test_it_still_does_not_come_to_the_responses_api_by_itself(provider: TracerProvider) -> None:
    from agentops.instrumentation.providers.openai import OpenaiInstrumentor
    from openai.resources.responses import Responses

    assert int(openai.__version__.partition(".")[0]) >= 2
    instrumentor = OpenaiInstrumentor()
    try:
        instrumentor.instrument(tracer_provider=provider)
        assert not hasattr(Responses.create, "__wrapped__") or not library._is_of_agentops(vars(Responses)["create"])
        # ... and it does not take back what it has done: remove `left_wrapped` when it does.
        instrumentor.uninstrument()
        assert list(library.left_wrapped(("openai",)))
    finally:
        library._switch_off(library.part(library.INSTRUMENTATION))
    assert list(library.left_wrapped(("openai",))) == []


@pytest.mark.parametrize("name", library.NAMES[library.OPENAI])
def test_a_wrapper_factory_makes_a_span_of_each_call(
    name: str, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    import asyncio

    record = getattr(library.part(library.OPENAI), name)(provider.get_tracer("test"))

    def create(**fields: Any) -> dict[str, Any]:
        return {"id": "x"}

    async def create_async(**fields: Any) -> dict[str, Any]:
        return create()

    asked = {"model": "m", "messages": USER, "input": "hi"}
    if name.startswith("async_"):
        assert asyncio.run(record(create_async, None, (), asked)) == {"id": "x"}
    else:
        assert record(create, None, (), asked) == {"id": "x"}
    (span,) = spans.get_finished_spans()
    assert (span.attributes or {})["gen_ai.request.model"] == "m"


@pytest.mark.parametrize("name", library.STREAM_PARTS)
def test_a_stream_class_has_the_parts_that_are_overridden(
    name: str, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    kind = getattr(library.part(library.STREAMS), name)
    made = kind(iter(()), provider.get_tracer("test").start_span("x"), {})
    assert set(library.STREAM_FIELDS) <= vars(made).keys()
    assert hasattr(made, "_finish_reason") == ("_process_chunk" in library.STREAM_PARTS[name])
    assert all(callable(getattr(made, part)) for part in library.STREAM_PARTS[name])
    assert spans.get_finished_spans() == ()
    made._finalize_stream()
    assert len(spans.get_finished_spans()) == 1


def test_handle_chat_attributes_reads_requests_and_answers() -> None:
    handle = library.part(library.STREAMS).handle_chat_attributes
    assert handle(kwargs={"model": "m", "messages": USER})["gen_ai.prompt.0.content"] == "hi"
    assert handle(kwargs={"extra_headers": {"X": "s3cret"}})["gen_ai.request.headers"]  # so it is not told of them
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "ok", "tool_calls": [CALL]}}]}
    read = handle(return_value=answer)
    assert read["gen_ai.completion.0.content"] == "ok"
    assert not any("tool_calls" in name for name in read)  # so they are added


def test_usage_would_be_asked_for_in_each_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACELOOP_METRICS_ENABLED", raising=False)
    assert library.part(library.STREAMS).is_metrics_enabled() is True
    with AgentOpsTracer().lifespan():
        assert library.part(library.STREAMS).is_metrics_enabled() is False


def test_kinds_of_tool_spans_are_members_of_an_enumeration() -> None:
    kinds = library.part(library.CHAT).AgentOpsSpanKindValues
    assert kinds.TOOL.value == "tool"
    with AgentOpsTracer().lifespan():
        assert isinstance(library.part(library.CHAT).AgentOpsSpanKindValues, SimpleNamespace)
        assert library.part(library.CHAT).AgentOpsSpanKindValues.TOOL == "tool"


def test_the_exporter_of_programs_is_where_it_is_replaced() -> None:
    core = library.part(library.CORE)
    names = {library.SPAN_EXPORTER, library.METRIC_EXPORTER}
    assert names <= vars(core).keys()
    assert names <= set(core.setup_telemetry.__code__.co_names)
