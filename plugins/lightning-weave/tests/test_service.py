"""With a project, calls go to Weave's service too: its real client, against a server of this machine."""

import asyncio
import gc
import logging
import threading
from collections.abc import Iterator

import pytest
import weave
from lightning_weave import WeaveTracer
from lightning_weave.forwarding import Forwarding
from service import WeaveService, weave_service

from lightning_core.errors import TracerError
from lightning_core.store import InMemoryLightningStore

# The client with which weave 0.54 looks a project up never closes its connection.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

KEY = "0123456789" * 4


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[WeaveService]:
    with weave_service() as service:
        monkeypatch.setenv("WANDB_BASE_URL", service.url)
        monkeypatch.setenv("WF_TRACE_SERVER_URL", service.url)
        monkeypatch.setenv("WEAVE_RETRY_MAX_ATTEMPTS", "1")
        monkeypatch.delenv("WANDB_API_KEY", raising=False)
        yield service
    gc.collect()  # that of a test is closed here, and not in another one


def make_tracer(**options: float) -> WeaveTracer:
    return WeaveTracer(project="team/project", api_key=KEY, **options)  # type: ignore[arg-type]


@weave.op
def add(one: int, other: int) -> int:
    return one + other


@weave.op
async def whole(number: int) -> int:
    return add(number, 1)


async def test_calls_are_in_the_store_and_at_the_service(
    service: WeaveService, store: InMemoryLightningStore, caplog: pytest.LogCaptureFixture
) -> None:
    tracer = make_tracer()

    async def rollout(number: int) -> list[str]:
        attempt = await store.start_rollout(number)
        ids = (attempt.rollout_id, attempt.attempt.attempt_id)
        async with tracer.trace_context(store=store, rollout_id=ids[0], attempt_id=ids[1]):
            assert await whole(number) == number + 1
        return [span.attributes["weave.call_id"] for span in await store.query_spans(*ids)]

    with caplog.at_level(logging.DEBUG), tracer.lifespan():
        recorded = await asyncio.gather(*(rollout(number) for number in range(16)))
    sent = {call["id"]: call for call in service.calls()}
    assert len(sent) == 32
    for inner, outer in recorded:
        assert sent[inner]["parent_id"] == outer
        assert sent[inner]["output"] == sent[outer]["output"]
        assert sent[inner]["op_name"].startswith("weave:///team/project/op/add:")
    assert any(path.endswith("obj/create") for path in service.paths())
    assert all(authorization for _, authorization, _ in service.requests)
    assert KEY not in caplog.text


async def test_the_agent_does_not_wait_for_a_service_that_hangs_and_the_end_waits_so_long(
    service: WeaveService, caplog: pytest.LogCaptureFixture
) -> None:
    tracer = make_tracer(service_timeout_seconds=0.2)
    service.gate.clear()
    with tracer.lifespan():
        async with tracer.trace_context() as trace:
            assert await whole(1) == 2
    assert not service.gate.is_set()  # so nobody has waited for the service
    assert [span.name for span in trace.spans] == ["add", "whole"]
    assert "lightning.weave_incomplete" in caplog.text
    service.gate.set()


def test_a_service_that_refuses_is_an_error_without_the_key(service: WeaveService) -> None:
    service.refuses = "/graphql"
    with pytest.raises(TracerError, match="does not give access to project team/project") as caught:
        make_tracer().init()
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is None
    assert weave.get_client() is None


async def test_what_the_service_refuses_later_costs_no_span(
    service: WeaveService, caplog: pytest.LogCaptureFixture
) -> None:
    with make_tracer().lifespan():
        tracer = make_tracer()
        with tracer.lifespan():
            service.refuses = "/create"
            async with tracer.trace_context() as trace:
                weave.op(lambda: 1, name="new")()
    assert [span.name for span in trace.spans] == ["new"]
    assert "lightning.weave_refused request=file_create" in caplog.text
    assert KEY not in caplog.text


class Remote:
    """Takes requests, once its gate is open."""

    def __init__(self) -> None:
        self.gate, self.began = threading.Event(), threading.Event()
        self.made: list[object] = []

    def call_start(self, request: int) -> None:
        self.began.set()
        self.gate.wait(20)
        self.made.append(request)

    def finish(self, remote: object) -> None:
        self.made.append("finished")


def test_requests_are_made_in_their_order_and_more_than_fits_is_dropped_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lightning_weave.forwarding.MAX_WAITING", 2)
    remote = Remote()
    forwarding = Forwarding(remote, remote.finish)
    forwarding.send("call_start", 0)
    assert remote.began.wait(20)
    for number in range(1, 6):
        forwarding.send("call_start", number)
    remote.gate.set()
    forwarding.close(20)
    forwarding.send("call_start", 6)
    assert remote.made == [0, 1, 2, "finished"]
    assert caplog.text.count("lightning.weave_behind") == 1


def test_what_waits_is_given_up_with_the_wait() -> None:
    remote = Remote()
    forwarding = Forwarding(remote, remote.finish)
    for number in range(3):
        forwarding.send("call_start", number)
    assert remote.began.wait(20)
    forwarding.close(0)
    forwarding.send("call_start", 3)
    remote.gate.set()
    for thread in threading.enumerate():
        if thread.name == "to_thread":
            thread.join(20)
    assert remote.made == [0]
