"""Each private name of Weave that is used is there, and does what is needed, in the version that is installed."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import sentry_sdk
import weave
from lightning_weave import private
from weave.telemetry import trace_sentry


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


def test_a_client_starts_no_threads_and_writes_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEAVE_ENABLE_WAL", "true")
    client = private.make_client(Service(), "local", "test")
    assert client._wal is None
    assert client.future_executor._executor is None
    assert client.future_executor_fastlane is None or client.future_executor_fastlane._executor is None


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
