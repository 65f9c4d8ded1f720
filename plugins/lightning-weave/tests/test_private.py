"""Each private name of Weave that is used is there, and does what is needed, in the version that is installed."""

import importlib
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import sentry_sdk
import weave
from lightning_weave import private
from weave.telemetry import trace_sentry
from weave.trace import api, weave_init
from weave.trace.call import Call


class Service:
    """Records what it is asked, and where."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Callable[[Any], Any]:
        if name not in private.server_methods():
            raise AttributeError(name)

        def take(request: Any) -> Any:
            self.asked.append((name, request))
            if name == "obj_create":
                return private.answer("ObjectCreateResponse", digest="d" * 43)
            if name == "file_create":
                return private.answer("FileCreateResponse", digest="f" * 43)
            return None

        return take

    def of(self, name: str) -> list[Any]:
        return [request for asked, request in self.asked if asked == name]


@pytest.fixture
def service() -> Any:
    service = Service()
    client = private.make_client(service, "local", "test")
    private.set_client(client)
    yield service
    private.set_client(None)


def test_error_reports_can_be_silenced(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []

    class Post(sentry_sdk.Transport):
        def capture_envelope(self, envelope: object) -> None:
            sent.append(envelope)

    client = sentry_sdk.Client(dsn="http://key@127.0.0.1:9/1", transport=Post, default_integrations=False)
    sentry = trace_sentry.global_trace_sentry
    monkeypatch.setattr(sentry, "_disabled", False)
    monkeypatch.setattr(sentry, "scope", sentry_sdk.Scope(client=client))
    sentry.exception(ValueError("sent"))
    assert len(sent) == 1
    private.silence_error_reports()
    sentry.exception(ValueError("never sent"))
    sentry.end_session()
    assert len(sent) == 1


def test_a_client_asks_its_server_before_the_call_returns(service: Service) -> None:
    def inside() -> int:
        assert len(service.of("call_start")) == 1
        assert service.of("call_end") == []
        return 7

    weave.op(inside)()
    (start,), (end,) = service.of("call_start"), service.of("call_end")
    begun, ended = start["start"], end["end"]
    assert begun["op_name"].startswith("weave:///local/test/op/inside:")
    assert begun["id"] == ended["id"]
    assert (ended["output"], ended["exception"]) == (7, None)
    assert isinstance(begun["started_at"], datetime)
    assert begun["started_at"] <= ended["ended_at"] <= datetime.now(UTC)
    assert {"attributes", "display_name", "inputs", "trace_id"} <= begun.keys()


def test_a_client_starts_no_threads_and_writes_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEAVE_ENABLE_WAL", "true")
    client = private.make_client(Service(), "local", "test")
    assert client._wal is None
    assert client.future_executor._executor is None
    assert client.future_executor_fastlane is None or client.future_executor_fastlane._executor is None


def test_entering_and_leaving_calls_is_told(service: Service) -> None:
    told: list[str] = []
    names: dict[str, str] = {}

    def entered(call: Call) -> None:
        names[call.id or ""] = call.func_name
        told.append(f"into {call.func_name}")

    with private.follow_calls(entered, lambda call_id: told.append(f"out of {names[call_id]}")):
        outer = weave.op(lambda: weave.op(lambda: 1, name="inner")(), name="outer")
        outer()
    order = list(dict.fromkeys(told))
    assert order == ["into outer", "into inner", "out of inner", "out of outer"]
    told.clear()
    outer()
    assert told == []


def test_init_and_finish_can_be_replaced(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def names() -> tuple[object, ...]:
        return weave_init.init_weave, weave_init.finish, weave_init.init_weave_disabled, api.replace_settings

    own = names()
    finished: list[bool] = []
    given: list[tuple[Any, ...]] = []
    client = private.current_client()
    assert client is not None

    def init(project: str, **hooks: Any) -> Any:
        given.append((project, hooks["attributes"]))
        return client

    with private.replace_init(init, lambda: finished.append(True), lambda settings: given.append((settings,))):
        assert weave.init("team/project", settings={"disabled": True}) is client
        assert not private.is_disabled()
        monkeypatch.setenv("WEAVE_DISABLED", "true")
        assert weave.init("team/project", attributes={"one": 1}) is client
        weave.finish()
    assert given == [({"disabled": True},), ("team/project", None), (None,), ("", {"one": 1})]
    assert finished == [True]
    assert names() == own


def test_libraries_are_patched_once() -> None:
    owners: list[tuple[Any, str]] = [
        (getattr(importlib.import_module(f"openai.resources.{place}"), name), method)
        for place, name, method in [
            ("chat.completions", "Completions", "create"),
            ("moderations", "Moderations", "create"),
            ("embeddings", "AsyncEmbeddings", "create"),
            ("responses", "AsyncResponses", "parse"),
        ]
    ]
    private.patch_libraries()
    before = [vars(owner)[method] for owner, method in owners]
    assert all("weave" in type(function).__module__ or hasattr(function, "__wrapped__") for function in before)
    private.patch_libraries()
    assert [vars(owner)[method] for owner, method in owners] == before


def confidential() -> str:
    return "trade secret"


def test_settings_without_a_service_have_effect(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in private.PLAIN_SETTINGS.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.INFO, "weave"):
        weave.op(confidential)()
    assert "wandb.ai" not in caplog.text
    assert b"trade secret" not in b"".join(request["file"][1] for request in service.of("file_create"))
    from weave.trace.settings import should_use_otel_v2

    assert not should_use_otel_v2()
