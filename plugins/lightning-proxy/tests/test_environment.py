"""A model without `api_base` is where `OPENAI_BASE_URL` says, as for OpenAI's own client: its key goes nowhere else."""

from typing import Any

import pytest
from lightning_proxy.openai_backend import OpenAIBackend
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Serve, model, status_of

from lightning_core.errors import ConfigError


@pytest.mark.parametrize("given", [{}, {"api_key": "os.environ/OPENAI_API_KEY"}])
async def test_the_key_of_the_environment_goes_to_the_endpoint_of_the_environment(
    serve: Serve, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", engine.url)
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-the-engine")
    entry = {"model_name": "small", "litellm_params": {"model": "openai/small", **given}}
    agent = await serve(model_list=[entry])
    assert await status_of(agent.chat()) == 200
    (received,) = engine.received
    assert received.headers["Authorization"] == "Bearer key-of-the-engine"


async def test_an_endpoint_that_is_given_gets_no_key_of_the_environment(
    serve: Serve, http: Any, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://other.invalid/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-another")
    agent = await serve(model_list=[model(engine)])
    assert await status_of(agent.chat()) == 200
    assert "Authorization" not in engine.received[0].headers


@pytest.mark.parametrize("url", [None, ""])
def test_without_it_a_model_is_at_openai(monkeypatch: pytest.MonkeyPatch, url: str | None) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    if url is not None:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
    assert OpenAIBackend().address == "api.openai.com"


def test_a_variable_that_is_not_a_url_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "localhost:8000")
    with pytest.raises(ConfigError, match="OPENAI_BASE_URL is 'localhost:8000'; it is the URL of an endpoint"):
        OpenAIBackend()
