"""The option `models`: aliases, and parameters by model."""

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from lightning_proxy import LLMProxy
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, MakeProxy, model, status_of

from lightning_core.errors import ConfigError
from lightning_core.types import AttemptedRollout

ANSWERED_BY = "agentlightning.model"
USER: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def large() -> AsyncIterator[FakeEngine]:
    async with FakeEngine(["from large"]) as engine:
        yield engine


@pytest.fixture
def start(make_proxy: MakeProxy, engine: FakeEngine, large: FakeEngine, attempt: AttemptedRollout, http: Any) -> Any:
    async def start(*models: dict[str, Any], params: dict[str, Any] | None = None, **options: Any) -> Agent:
        listed = [model(engine, **(params or {})), model(large, "large", **(params or {}))]
        options = {"num_retries": 1, **options}
        return Agent(http, await make_proxy(model_list=listed, models=models, **options), attempt)

    return start


async def test_a_model_has_other_names_and_one_takes_all_that_are_left(
    start: Any, engine: FakeEngine, large: FakeEngine
) -> None:
    agent = await start(
        {"model_name": "large", "aliases": ["gpt-5", "claude-opus-*", "claude-*[1m]"]},
        {"model_name": "small", "aliases": ["*"]},
    )
    async with openai.AsyncOpenAI(base_url=agent.base, api_key="none", max_retries=0) as client:
        for name in ("large", "gpt-5", "claude-opus-4-6", "claude-x[1m]", "claude-haiku-m", "small"):
            await client.chat.completions.create(model=name, messages=USER)
        assert [each.id async for each in client.models.list()] == ["small", "large", "gpt-5"]
        for name in ("gpt-5", "claude-haiku-4-5"):
            assert (await client.models.retrieve(name)).id == name
    assert [each.fields["model"] for each in large.received] == ["large"] * 4
    assert [each.fields["model"] for each in engine.received] == ["small"] * 2
    spans = await agent.spans()
    assert [span.attributes.get(ANSWERED_BY) for span in spans] == [None, "large", "large", "large", "small", None]
    assert spans[1].attributes["gen_ai.request.model"] == "gpt-5"


PARAMS = {"default_params": {"temperature": 0.5, "max_tokens": 7}, "forced_params": {"top_p": 0.9, "stop": ["END"]}}


@pytest.mark.parametrize(
    ("path", "sent", "got"),
    [
        ("/chat/completions", {}, {"temperature": 0.5, "max_tokens": 7, "top_p": 0.9, "stop": ["END"]}),
        ("/chat/completions", {"max_completion_tokens": 3}, {"max_completion_tokens": 3, "max_tokens": None}),
        ("/chat/completions", {"temperature": 0, "top_p": 1}, {"temperature": 0, "top_p": 0.9}),
        ("/messages", {"max_tokens": 3}, {"max_tokens": 3, "stop_sequences": ["END"], "stop": None}),
        ("/responses", {}, {"max_output_tokens": 7, "max_tokens": None, "top_p": 0.9}),
        ("/chat/completions", {"temperature": None}, {"temperature": 0.5, "max_tokens": 7}),
        ("/embeddings", {}, {"temperature": None, "top_p": None}),
    ],
)
async def test_parameters_are_set_by_model_and_by_the_names_of_the_api(
    start: Any, engine: FakeEngine, path: str, sent: dict[str, Any], got: dict[str, Any]
) -> None:
    agent = await start({"model_name": "small", **PARAMS})
    assert await status_of(agent.post(path, messages=USER, input="hi", **sent)) == 200
    fields = engine.received[0].fields
    assert {name: fields.get(name) for name in got} == got
    assert json.loads(engine.received[0].body) == fields


@pytest.mark.parametrize("effort", ["low", "high"])
@pytest.mark.parametrize("path", ["/chat/completions", "/messages", "/responses"])
@pytest.mark.parametrize("converts", [False, True])
async def test_forced_parameters_have_the_names_of_the_api_that_is_asked(
    start: Any, engine: FakeEngine, path: str, effort: str, converts: bool
) -> None:
    forced = {"reasoning_effort": effort, "stop": "END"}
    agent = await start({"model_name": "small", "forced_params": forced}, params={"chat_only": converts})
    said: dict[str, Any] = {"input": "hi"} if path == "/responses" else {"messages": USER}
    async with agent.post(path, **said) as response:
        assert response.status == 200, await response.text()
    fields = engine.received[0].fields
    if converts or path == "/chat/completions":
        got = (fields["reasoning_effort"], fields["stop"])
    elif path == "/messages":
        got = (fields["output_config"]["effort"], *fields["stop_sequences"])
    else:
        got = (fields["reasoning"]["effort"], fields["stop"])
    assert (got[0], got[1][0] if isinstance(got[1], list) else got[1]) == (effort, "END")
    assert (await agent.span()).attributes["gen_ai.request.reasoning_effort"] == effort


async def test_an_effort_that_the_agent_says_is_no_default(start: Any, engine: FakeEngine) -> None:
    default = {"reasoning_effort": "low"}
    agent = await start({"model_name": "small", "default_params": default}, params={"chat_only": True})
    for more in ({}, {"output_config": {"effort": "high"}}):
        assert await status_of(agent.post("/messages", messages=USER, max_tokens=9, **more)) == 200
    assert [each.fields["reasoning_effort"] for each in engine.received] == ["low", "high"]


async def test_another_model_gets_its_own_parameters(start: Any, engine: FakeEngine, large: FakeEngine) -> None:
    agent = await start(
        {"model_name": "small", "forced_params": {"temperature": 0}},
        {"model_name": "large", "forced_params": {"seed": 1}},
    )
    for name in ("small", "large"):
        assert await status_of(agent.chat(model=name, temperature=1)) == 200
    assert engine.received[0].fields["temperature"] == 0
    assert (large.received[0].fields["temperature"], large.received[0].fields["seed"]) == (1, 1)


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ([{"model_name": "smal"}], r"the model list has no 'smal'; it has: small\. Did you mean 'small'"),
        ([{"model_name": "small", "fallbacks": ["small"]}], r"models\.0\.fallbacks .*there is no such key"),
        ([{"model_name": "small", "aliases": ["small"]}], "'small' is a model of the model list itself"),
        ([{"model_name": "small"}, {"model_name": "small"}], "two entries of 'small'"),
        ([{"model_name": "small", "alias": ["x"]}], r"models\.0\.alias .*there is no such key"),
        ([{"model_name": "small", "forced_params": {"temprature": 0}}], r"temprature .*there is no such key"),
        ([{"model_name": "small", "default_params": {"top_k": "5"}}], r"top_k is .*it has to be a whole number"),
        ([{"aliases": ["x"]}], "the key is missing"),
        (
            [{"model_name": "small", "aliases": ["*"]}, {"model_name": "b", "aliases": ["*"]}],
            r"'\*' as an alias of 'small' and of 'b'",
        ),
    ],
)
def test_a_wrong_entry_is_named(models: Any, message: str) -> None:
    listed = [{"model_name": "small", "litellm_params": {"model": "openai/small", "api_base": "http://127.0.0.1:1"}}]
    with pytest.raises(ConfigError, match=message):
        LLMProxy(allow_unattributed=True, model_list=listed, models=models)
