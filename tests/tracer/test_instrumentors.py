import asyncio
import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from lightning_core.errors import TracerError
from lightning_core.tracer import OtelTracer, Trace
from lightning_core.tracer.instrumentors import GENAI_INSTRUMENTORS, GROUP

if TYPE_CHECKING:
    from tests.tracer.conftest import Install

OFFERED = ("fake-", "opentelemetry-fake")
"""What the names of distributions begin with that tests install."""

CLIENT = """
def ask(question):
    return f"an answer to {question}"
"""

INSTRUMENTOR = """
import functools

import fake_client
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor
from opentelemetry.trace import get_tracer


class Instrumentor(BaseInstrumentor):
    def instrumentation_dependencies(self):
        return ({dependency!r},) if {dependency!r} else ()

    def _instrument(self, tracer_provider=None, **options):
        tracer = get_tracer("fake", None, tracer_provider)
        original = self.original = fake_client.ask

        @functools.wraps(original)
        def traced(question):
            with tracer.start_as_current_span({span!r}, attributes={{"question": question}}):
                return original(question)

        fake_client.ask = traced
        {after}

    def _uninstrument(self, **options):
        {undo}
"""


def instrumentor(
    span: str = "model call",
    *,
    dependency: str = "",
    undo: str = "fake_client.ask = self.original",
    after: str = "pass",
) -> str:
    return INSTRUMENTOR.format(span=span, dependency=dependency, undo=undo, after=after)


HALF_WAY = instrumentor(after="raise RuntimeError('half way')")


def ask(question: str) -> str:
    answer: str = importlib.import_module("fake_client").ask(question)
    return answer


def questions(trace: Trace) -> list[str]:
    return [span.attributes["question"] for span in trace.spans if span.name == "model call"]


@pytest.fixture(autouse=True)
def only_what_the_test_installs(monkeypatch: pytest.MonkeyPatch, install: "Install") -> None:
    install("fake-client", {}, fake_client=CLIENT)
    real = importlib.metadata.entry_points

    def entry_points(**selection: Any) -> Any:
        found = real(**selection)
        if selection.get("group") != GROUP:
            return found
        return [each for each in found if each.dist is not None and each.dist.name.startswith(OFFERED)]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    for client in ("cohere", "groq", "openai"):
        monkeypatch.setitem(sys.modules, client, ModuleType(client))


@pytest.fixture
def openai(install: "Install") -> None:
    install("fake-openai", {GROUP: {"openai": "fake_openai:Instrumentor"}}, fake_openai=instrumentor())


@pytest.mark.usefixtures("openai")
async def test_each_call_is_recorded_in_the_trace_where_it_is_made() -> None:
    tracer = OtelTracer()

    async def rollout(number: int) -> Trace:
        async with tracer.trace_context() as trace:
            ask(f"{number} in the task")
            await asyncio.sleep(0)
            await asyncio.to_thread(ask, f"{number} in a thread")
        return trace

    with tracer.lifespan():
        traces = await asyncio.gather(*(rollout(number) for number in range(20)))
        assert ask("outside of a trace") == "an answer to outside of a trace"
    for number, trace in enumerate(traces):
        assert questions(trace) == [f"{number} in the task", f"{number} in a thread"]


@pytest.mark.usefixtures("openai")
async def test_each_tracer_has_its_own_calls_and_none_is_recorded_after_the_last_one() -> None:
    first, second = OtelTracer(), OtelTracer()
    with first.lifespan():
        with second.lifespan():
            async with first.trace_context() as outer:
                ask("of the first")
                async with second.trace_context() as inner:
                    ask("of the second")
        async with first.trace_context() as alone:
            ask("of the first again")
    without = OtelTracer(instrument=())
    with without.lifespan():
        async with without.trace_context() as nobody:
            ask("of one that wants no instrumentor")
    assert (questions(outer), questions(inner), questions(alone), questions(nobody)) == (
        ["of the first"],
        ["of the second"],
        ["of the first again"],
        [],
    )


@pytest.mark.usefixtures("openai")
def test_runs_one_after_the_other_patch_a_library_once() -> None:
    with OtelTracer().lifespan():
        patched = importlib.import_module("fake_client").ask
    for _ in range(3):
        with OtelTracer().lifespan():
            assert importlib.import_module("fake_client").ask is patched


async def test_call_is_recorded_once_when_an_instrumentor_does_not_take_its_patches_back(install: "Install") -> None:
    install("fake-openai", {GROUP: {"openai": "fake_openai:Instrumentor"}}, fake_openai=instrumentor(undo="pass"))
    for _ in range(3):
        tracer = OtelTracer()
        with tracer.lifespan():
            async with tracer.trace_context() as trace:
                ask("once")
        assert questions(trace) == ["once"]
    assert ask("after the last teardown") == "an answer to after the last teardown"


@pytest.mark.usefixtures("openai")
async def test_instrumentor_that_somebody_else_turned_on_is_left_alone() -> None:
    theirs = importlib.import_module("fake_openai").Instrumentor()
    theirs.instrument(tracer_provider=TracerProvider(shutdown_on_exit=False))
    patched = importlib.import_module("fake_client").ask
    tracer = OtelTracer()
    with tracer.lifespan():
        async with tracer.trace_context() as trace:
            ask("theirs")
    assert trace.spans == []
    assert importlib.import_module("fake_client").ask is patched
    theirs.uninstrument()


@pytest.mark.usefixtures("openai")
async def test_calls_are_recorded_from_the_import_of_their_client_on(
    install: "Install", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "openai")
    install("a-client", {}, openai="")
    with OtelTracer().lifespan():
        pass
    first, second = OtelTracer(), OtelTracer()
    with first.lifespan(), second.lifespan():
        async with first.trace_context() as trace:
            ask("before")
            assert "fake_openai" not in sys.modules
            importlib.import_module("openai")
            ask("after")
        async with second.trace_context() as another:
            ask("of the second")
    assert (questions(trace), questions(another)) == (["after"], ["of the second"])
    with first.lifespan():
        async with first.trace_context() as later:
            ask("later")
    assert questions(later) == ["later"]


@pytest.mark.usefixtures("openai")
def test_a_client_that_is_imported_after_the_last_tracer_is_left_alone(
    install: "Install", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "openai")
    install("a-client", {}, openai="")
    unpatched = importlib.import_module("fake_client").ask
    with OtelTracer().lifespan():
        pass
    importlib.import_module("openai")
    assert importlib.import_module("fake_client").ask is unpatched


async def test_broken_instrumentor_is_logged_and_the_others_work(
    install: "Install", caplog: pytest.LogCaptureFixture
) -> None:
    install("fake-cohere", {GROUP: {"cohere": "fake_cohere:Instrumentor"}}, fake_cohere="import not_there")
    install("fake-groq", {GROUP: {"groq": "fake_groq:Instrumentor"}}, fake_groq=HALF_WAY)
    install("fake-openai", {GROUP: {"openai": "fake_openai:Instrumentor"}}, fake_openai=instrumentor())
    tracer = OtelTracer()
    with tracer.lifespan():
        async with tracer.trace_context() as trace:
            ask("recorded once, though one was half way")
    assert len(questions(trace)) == 1
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "lightning.instrumentor_left_out name=cohere distribution=fake-cohere "
        "cause=ModuleNotFoundError(\"No module named 'not_there'\")",
        "lightning.instrumentor_left_out name=groq distribution=fake-groq cause=RuntimeError('half way')",
    ]


async def test_instrumentor_whose_client_library_is_not_installed_is_left_out_quietly(
    install: "Install", caplog: pytest.LogCaptureFixture
) -> None:
    source = instrumentor(dependency="no-such-client-library>=1")
    install("fake-openai", {GROUP: {"openai": "fake_openai:Instrumentor"}}, fake_openai=source)
    install("fake-cohere", {GROUP: {"cohere": "fake_cohere:Instrumentor"}}, fake_cohere="import cohere.client")
    with OtelTracer().lifespan():
        pass
    assert caplog.records == []


@pytest.mark.parametrize(
    "first", [instrumentor(), "import not_there", instrumentor(after="raise RuntimeError('half way')")]
)
async def test_of_two_instrumentors_for_one_library_one_that_works_is_used(install: "Install", first: str) -> None:
    install("fake-openai-a", {GROUP: {"openai": "fake_a:Instrumentor"}}, fake_a=first)
    install("fake-openai-b", {GROUP: {"openai": "fake_b:Instrumentor"}}, fake_b=instrumentor())
    tracer = OtelTracer()
    with tracer.lifespan():
        async with tracer.trace_context() as trace:
            ask("once")
    assert questions(trace) == ["once"]


@pytest.mark.parametrize(
    ("instrument", "recorded"),
    [(("genai",), 0), (("genai", "http-client"), 1), (("http_client",), 1), ((), 0)],
)
async def test_instrumentors_beyond_model_clients_are_on_when_they_are_named(
    install: "Install", instrument: tuple[str, ...], recorded: int
) -> None:
    install("fake-http", {GROUP: {"http-client": "fake_http:Instrumentor"}}, fake_http=instrumentor())
    tracer = OtelTracer(instrument=instrument)
    with tracer.lifespan():
        async with tracer.trace_context() as trace:
            ask("over http")
    assert len(questions(trace)) == recorded


@pytest.mark.usefixtures("openai")
def test_name_that_is_not_installed_is_an_error_with_the_nearest_one() -> None:
    tracer = OtelTracer(instrument=("genai", "opena"))
    with pytest.raises(TracerError, match=r"no instrumentor named 'opena' is installed; installed: openai\. Did you"):
        tracer.init()
    with pytest.raises(TypeError, match="instrument is a list of names, got the string 'openai'"):
        OtelTracer(instrument="openai")


async def test_broken_instrumentor_that_was_asked_for_is_an_error_and_nothing_stays_on(install: "Install") -> None:
    install("fake-cohere", {GROUP: {"cohere": "fake_cohere:Instrumentor"}}, fake_cohere=instrumentor())
    install("fake-openai", {GROUP: {"openai": "fake_openai:Instrumentor"}}, fake_openai="import not_there")
    tracer = OtelTracer(instrument=("cohere", "openai"))
    with pytest.raises(
        TracerError, match="instrumentor 'openai' of fake-openai cannot be used: ModuleNotFound"
    ) as info:
        tracer.init()
    assert isinstance(info.value.__cause__, ModuleNotFoundError)
    without = OtelTracer(instrument=())
    with without.lifespan():
        async with without.trace_context() as trace:
            ask("of one that wants no instrumentor")
    assert questions(trace) == []


CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
OPT_IN = "OTEL_SEMCONV_STABILITY_OPT_IN"


@pytest.mark.usefixtures("openai")
def test_instrumentors_are_asked_to_record_messages_while_they_are_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONTENT, raising=False)
    monkeypatch.setenv(OPT_IN, "http")
    with OtelTracer().lifespan():
        assert os.environ[CONTENT] == "SPAN_ONLY"
        assert os.environ[OPT_IN] == "http"
    assert CONTENT not in os.environ
    assert os.environ[OPT_IN] == "http"


def test_names_of_the_list_are_written_as_they_are_compared() -> None:
    assert all(name == name.lower().replace("-", "_") for name in GENAI_INSTRUMENTORS)
