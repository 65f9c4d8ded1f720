import gc
import weakref

from opentelemetry import trace as otel
from opentelemetry.context import Context, attach, detach
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace import TracerProvider

from lightning_core.tracer import OtelTracer
from lightning_core.tracer.provider import RoutingProvider


async def test_span_with_only_a_parent_in_its_context_follows_the_parent(tracer: OtelTracer) -> None:
    library = RoutingProvider().get_tracer("a library")
    async with tracer.trace_context() as trace:
        with library.start_as_current_span("parent") as parent:
            by_hand = otel.set_span_in_context(parent, Context())
        token = attach(Context())
        library.start_span("child", by_hand).end()
        library.start_span("of nobody").end()
        detach(token)
    parent_span, child = trace.spans
    assert (parent_span.name, child.name) == ("parent", "child")
    assert child.parent_id == parent_span.span_id


async def test_outside_of_a_trace_there_is_no_span_and_the_application_stays_the_parent(tracer: OtelTracer) -> None:
    library = RoutingProvider().get_tracer("a library")
    application = TracerProvider(shutdown_on_exit=False).get_tracer("an application")
    with application.start_as_current_span("around") as around, library.start_as_current_span("call") as call:
        assert not call.is_recording()
        assert otel.get_current_span().get_span_context() == around.get_span_context()


async def test_closed_provider_makes_no_spans(tracer: OtelTracer) -> None:
    provider = RoutingProvider()
    library = provider.get_tracer("a library")
    async with tracer.trace_context() as trace:
        library.start_span("before").end()
        provider.close()
        library.start_span("after").end()
        with library.start_as_current_span("around"):
            tracer.create_span("inside")
    assert [span.name for span in trace.spans] == ["before", "inside"]


async def test_spans_keep_what_they_were_started_with(tracer: OtelTracer) -> None:
    library = RoutingProvider().get_tracer("a library", "1.2")
    async with tracer.trace_context() as trace:
        library.start_span("s", kind=otel.SpanKind.CLIENT, attributes={"a": 1}, start_time=5_000_000_000).end()
        with suppress_instrumentation(), library.start_as_current_span("t", attributes={"b": 2}):
            pass
    assert (trace.spans[0].attributes, trace.spans[0].start_time) == ({"a": 1}, 5.0)
    assert trace.spans[1].attributes == {"b": 2}


async def test_what_was_patched_for_good_does_not_keep_tracers_alive() -> None:
    library = RoutingProvider().get_tracer("a library")
    tracer = OtelTracer(instrument=())
    with tracer.lifespan():
        async with tracer.trace_context():
            library.start_span("s").end()
        provider = weakref.ref(tracer.provider)
    del tracer
    gc.collect()
    assert provider() is None
