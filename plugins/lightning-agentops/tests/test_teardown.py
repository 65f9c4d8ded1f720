"""What a tracer leaves behind: nothing."""

import builtins
import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from contextvars import copy_context
from importlib.metadata import requires
from typing import Any

import agentops.instrumentation as instrumentation
import agentops.sdk.core
import openai
import pytest
from agentops_parts import CHAT, USER, begin
from lightning_agentops import AgentOpsTracer, library
from lightning_agentops.tracer import _provider
from opentelemetry import trace as otel
from wrapt import FunctionWrapper

from lightning_core.errors import TracerError
from lightning_core.store import InMemoryLightningStore
from lightning_core.tracer import OtelTracer
from lightning_core.tracer.exclusive import claim_process

MODULES = (library.CORE, library.INSTRUMENTATION, library.OPENAI, library.STREAMS, library.CHAT)


def patched() -> dict[str, Any]:
    """Return everything that the tracer is known to touch, as it is now."""
    from openai.resources.chat.completions import AsyncCompletions, Completions
    from openai.resources.completions import Completions as TextCompletions
    from openai.resources.embeddings import AsyncEmbeddings
    from openai.resources.responses import AsyncResponses, Responses

    clients = (Completions, AsyncCompletions, TextCompletions, AsyncEmbeddings, Responses, AsyncResponses)
    found = {f"{kind.__module__}.{kind.__name__}.create": vars(kind).get("create") for kind in clients}
    found |= {f"{kind.__name__}.parse": vars(kind).get("parse") for kind in (Completions, AsyncCompletions)}
    found |= {"import": builtins.__import__, "print": builtins.print}
    found |= {name: getattr(agentops.sdk.core.tracer, name) for name in ("provider", "_initialized")}
    found |= {"own get_tracer": "get_tracer" in vars(agentops.sdk.core.tracer), "global": otel.get_tracer_provider()}
    for module in MODULES:
        for name in library.NAMES[module]:
            value = getattr(library.part(module), name)
            found[f"{module}.{name}"] = tuple(value) if isinstance(value, (list, set)) else value
    return found


@pytest.fixture
def whole() -> Iterator[None]:
    """Fail a test that leaves anything changed."""
    tracer = AgentOpsTracer()
    with tracer.lifespan():  # imports, and the global provider, which can be set once
        pass
    with OtelTracer().lifespan():  # it leaves its patches in place, idle
        pass
    before, threads = patched(), set(threading.enumerate())
    yield
    after = patched()
    assert set(threading.enumerate()) <= threads
    assert {name: value for name, value in after.items() if value is not before[name] and value != before[name]} == {}
    assert list(library.left_wrapped(tuple(instrumentation.TARGET_PACKAGES))) == []


@pytest.mark.usefixtures("whole")
async def test_everything_is_as_it_was_after_teardown(
    store: InMemoryLightningStore, client: openai.AsyncOpenAI
) -> None:
    tracer = AgentOpsTracer()
    for _ in range(3):
        attempt = await begin(store)
        with tracer.lifespan():
            assert isinstance(vars(openai.resources.chat.completions.AsyncCompletions)["create"], FunctionWrapper)
            async with attempt.traced(tracer):
                await client.chat.completions.create(model="small", messages=USER)
        assert [span.name for span in await attempt.spans()] == [CHAT]  # once, also after the third time


@pytest.mark.usefixtures("whole")
async def test_a_patch_that_somebody_else_put_around_stays(
    store: InMemoryLightningStore, client: openai.AsyncOpenAI
) -> None:
    from openai.resources.chat.completions import AsyncCompletions
    from wrapt import wrap_function_wrapper

    seen: list[str] = []

    async def note(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        seen.append(kwargs["model"])
        return await wrapped(*args, **kwargs)

    original = vars(AsyncCompletions)["create"]
    tracer = AgentOpsTracer()
    try:
        with tracer.lifespan():
            wrap_function_wrapper("openai.resources.chat.completions", "AsyncCompletions.create", note)
        await client.chat.completions.create(model="small", messages=USER)
        assert seen == ["small"]
        assert vars(AsyncCompletions)["create"].__wrapped__ is original
    finally:
        AsyncCompletions.create = original


@pytest.mark.usefixtures("whole")
async def test_what_outlives_the_tracer_makes_no_span_and_no_error(
    store: InMemoryLightningStore, client: openai.AsyncOpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    tracer, attempt = AgentOpsTracer(), await begin(store)
    create = None
    with tracer.lifespan():
        async with attempt.traced(tracer):
            create = client.chat.completions.create  # still patched
            stream = await create(model="small", messages=USER, stream=True)
    _ = [chunk async for chunk in stream]
    assert (await create(model="small", messages=USER)).choices[0].message.content == "ok"
    assert [span.name for span in await attempt.spans()] == [CHAT]
    assert caplog.records == []


async def test_a_span_that_starts_after_its_trace_does_not_keep_it() -> None:
    tracer = AgentOpsTracer()
    with tracer.lifespan():
        async with tracer.trace_context() as left:
            inside = copy_context()
        late = inside.run(lambda: _provider.get_tracer("test").start_span("late"))
        assert late.is_recording()
        assert left not in _provider._open
        late.end()
        async with tracer.trace_context():  # the context has the last trace, for `get_last_trace`
            pass
        gone = weakref.ref(left)
        del left, late, inside
        gc.collect()
        assert gone() is None


async def test_of_many_spans_only_the_open_ones_are_kept_until_the_trace_ends() -> None:
    tracer = AgentOpsTracer()
    with tracer.lifespan():
        async with tracer.trace_context() as trace:
            spans = _provider.get_tracer("test")
            first = spans.start_span("open")
            for _ in range(100):
                spans.start_span("ended").end()
            kept = _provider._open[trace].spans
            assert first in kept
            assert len(kept) < 32
        assert not first.is_recording()
        assert len(trace.spans) == 101


@pytest.mark.usefixtures("whole")
async def test_the_cores_own_instrumentor_is_off_and_each_call_is_one_span(
    store: InMemoryLightningStore, client: openai.AsyncOpenAI
) -> None:
    pytest.importorskip("opentelemetry.instrumentation.openai")
    core, tracer, attempt, other = OtelTracer(), AgentOpsTracer(), await begin(store), await begin(store)
    with core.lifespan():
        async with other.traced(core):
            await client.chat.completions.create(model="small", messages=USER)
    with tracer.lifespan():
        async with attempt.traced(tracer):
            await client.chat.completions.create(model="small", messages=USER)
    assert [span.name for span in await attempt.spans()] == [CHAT]
    assert len(await other.spans()) == 1


@pytest.mark.usefixtures("whole")
async def test_beside_the_cores_tracer_a_call_still_counts_once(
    store: InMemoryLightningStore, client: openai.AsyncOpenAI
) -> None:
    core, tracer, attempt, other = OtelTracer(), AgentOpsTracer(), await begin(store), await begin(store)
    with core.lifespan(), tracer.lifespan():
        async with attempt.traced(tracer):
            await client.chat.completions.create(model="small", messages=USER)
        async with other.traced(core):
            await client.chat.completions.create(model="small", messages=USER)
    assert len(await attempt.calls()) == len(await other.calls()) == 1


@pytest.mark.usefixtures("whole")
async def test_the_cores_tracer_goes_on_when_agentops_is_torn_down_first(
    store: InMemoryLightningStore, client: openai.AsyncOpenAI
) -> None:
    pytest.importorskip("opentelemetry.instrumentation.openai")
    core, tracer = OtelTracer(), AgentOpsTracer()
    tracer.init()
    with core.lifespan():
        tracer.teardown()
        attempt = await begin(store)
        async with attempt.traced(core):
            await client.chat.completions.create(model="small", messages=USER)
        assert len(await attempt.spans()) == 1
    with core.lifespan():  # the core leaves its own patches in place, and goes on with them
        again = await begin(store)
        async with again.traced(core):
            await client.chat.completions.create(model="small", messages=USER)
        assert len(await again.spans()) == 1


@pytest.mark.usefixtures("whole")
def test_it_is_refused_beside_weave_and_says_why() -> None:
    with (
        claim_process("weave"),
        pytest.raises(TracerError, match=r"'agentops' cannot work .* 'weave' .* same functions"),
    ):
        AgentOpsTracer().init()
    with AgentOpsTracer().lifespan(), pytest.raises(TracerError, match=r"'weave' cannot work .* 'agentops'"):
        claim_process("weave")
    claim_process("weave").release()


@pytest.mark.usefixtures("whole")
def test_a_library_that_is_not_known_is_refused_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    tracer = AgentOpsTracer()
    with monkeypatch.context() as patch:
        patch.delattr(instrumentation, "_perform_instrumentation")
        with pytest.raises(TracerError, match=r"has no .*_perform_instrumentation; .* pip install agentops==0\.4\.21"):
            tracer.init()
    tracer.teardown()  # nothing to undo
    with tracer.lifespan():
        pass


def test_a_module_that_agentops_lacks_is_named_and_what_is_installed_is_not_advised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, library.CHAT, None)
    with pytest.raises(TracerError, match=r"of agentops .* cannot be imported: .*; install the module that it lacks$"):
        AgentOpsTracer().init()


def test_the_client_that_agentops_imports_and_does_not_require_is_required() -> None:
    assert any(line.startswith("openai<") for line in requires("lightning-agentops") or [])


@pytest.mark.usefixtures("whole")
def test_an_error_on_the_way_undoes_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(instrumentation, "instrument_all", fail)
        with pytest.raises(ZeroDivisionError):
            AgentOpsTracer().init()
    with AgentOpsTracer().lifespan():
        pass


def test_what_the_agents_sdk_sends_its_traces_to_is_put_back() -> None:
    agents = pytest.importorskip("agents.tracing")

    class Mine(agents.TracingProcessor):  # type: ignore[misc,name-defined]
        """Sends nothing."""

    Mine.__abstractmethods__ = frozenset()
    mine = Mine()
    kept = library._agents_processors()
    try:
        agents.set_trace_processors([mine])
        with AgentOpsTracer().lifespan():
            assert mine not in library._agents_processors()
        assert list(library._agents_processors()) == [mine]
    finally:
        library._set_agents_processors(kept)


@pytest.mark.parametrize("option", ["agentops_managed", "instrument_managed", "daemon"])
def test_options_of_the_former_tracer_are_taken_with_a_warning(option: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"AgentOpsTracer\({option}=\) has no effect"):
        AgentOpsTracer(**{option: True})
