"""What a tracer leaves behind: patches that do nothing."""

from importlib.metadata import requires
from typing import Any

import openai
import pytest
from agentops_parts import CHAT, USER, begin
from lightning_agentops import AgentOpsTracer, library

from lightning_core.errors import TracerError
from lightning_core.store import InMemoryLightningStore
from lightning_core.tracer import OtelTracer
from lightning_core.tracer.exclusive import claim_process


async def test_a_call_is_recorded_once_also_after_the_third_init(
    store: InMemoryLightningStore, client: openai.AsyncOpenAI
) -> None:
    tracer = AgentOpsTracer()
    for _ in range(3):
        attempt = await begin(store)
        with tracer.lifespan():
            async with attempt.traced(tracer):
                await client.chat.completions.create(model="small", messages=USER)
        assert [span.name for span in await attempt.spans()] == [CHAT]


async def test_what_outlives_the_tracer_makes_no_span_and_no_error(
    store: InMemoryLightningStore, client: openai.AsyncOpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    tracer, attempt = AgentOpsTracer(), await begin(store)
    with tracer.lifespan():
        async with attempt.traced(tracer):
            pass
    assert (await client.chat.completions.create(model="small", messages=USER)).choices[0].message.content == "ok"
    stream = await client.chat.completions.create(model="small", messages=USER, stream=True)
    assert isinstance(stream, openai.AsyncStream)
    _ = [chunk async for chunk in stream]
    assert list(await attempt.spans()) == []
    assert caplog.records == []


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


def test_it_is_refused_beside_weave_and_says_why() -> None:
    with (
        claim_process("weave"),
        pytest.raises(TracerError, match=r"'agentops' cannot work .* 'weave' .* same functions"),
    ):
        AgentOpsTracer().init()
    with AgentOpsTracer().lifespan(), pytest.raises(TracerError, match=r"'weave' cannot work .* 'agentops'"):
        claim_process("weave").__enter__()
    with claim_process("weave"):
        pass


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "version", lambda name: "0.4.99")
    started = library.Instrumentation(library.RoutingProvider())
    with pytest.raises(TracerError, match=r"made for agentops 0\.4\.21, got 0\.4\.99: pip install agentops==0\.4\.21"):
        started.start()


def test_the_client_that_agentops_imports_and_does_not_require_is_required() -> None:
    assert any(line.startswith("openai<") for line in requires("lightning-agentops") or [])


@pytest.mark.parametrize("option", ["agentops_managed", "instrument_managed", "daemon"])
def test_options_of_the_former_tracer_are_taken_with_a_warning(option: str) -> None:
    options: dict[str, Any] = {option: True}
    with pytest.warns(DeprecationWarning, match=rf"AgentOpsTracer\({option}=\) has no effect"):
        AgentOpsTracer(**options)
