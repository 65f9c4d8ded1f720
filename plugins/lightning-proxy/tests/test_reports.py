"""An agent that is no Python function reports how it went."""

import re
from typing import Any

import aiohttp
import pytest
from lightning_proxy import LLMProxy
from lightning_proxy.routes import report_url
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, MakeProxy, status_of

from lightning_core.emitter import emit_reward, find_final_reward, get_reward_value
from lightning_core.store import InMemoryLightningStore
from lightning_core.types import AttemptedRollout, ProxyLLM, Span


def url_of(proxy: LLMProxy, rollout: AttemptedRollout) -> str:
    llm = proxy.as_resource(model="small")
    assert isinstance(llm, ProxyLLM)
    return report_url(llm, rollout.rollout_id, rollout.attempt.attempt_id)


async def test_reward_is_a_span_of_its_attempt_after_the_calls_before_it(agent: Agent) -> None:
    async with agent.chat():
        pass
    # As `curl -d` sends it: curl calls it a form.
    headers = {"content-type": "application/x-www-form-urlencoded"}
    async with agent.http.post(url_of(agent.proxy, agent.rollout), data='{"reward": 0.5}', headers=headers) as answer:
        assert (answer.status, await answer.read()) == (204, b"")

    call, reward = await agent.spans()

    assert call.name == "chat small"
    assert find_final_reward([reward]) == 0.5
    assert reward.sequence_id > call.sequence_id


async def test_reported_reward_does_not_take_the_place_of_the_runners(
    agent: Agent, store: InMemoryLightningStore
) -> None:
    graded = Span.from_core_fields(
        emit_reward(0.1, propagate=False),
        rollout_id=agent.rollout.rollout_id,
        attempt_id=agent.rollout.attempt.attempt_id,
    )
    for reported in (50, 99):
        assert await status_of(agent.http.post(url_of(agent.proxy, agent.rollout), json={"reward": reported})) == 204
        await agent.spans()
        await store.add_span(graded)

    spans = await agent.spans()

    assert [get_reward_value(span) for span in spans] == [50.0, 0.1, 99.0]
    assert find_final_reward(spans) == 0.1


async def test_the_key_of_an_attempt_is_not_recorded_with_what_it_reports(
    http: aiohttp.ClientSession, make_proxy: MakeProxy, engine: FakeEngine, attempt: AttemptedRollout
) -> None:
    proxy = await make_proxy(engine, key="secret")
    key = proxy.attempt_key(attempt.rollout_id, attempt.attempt.attempt_id)
    report = {"annotation": {"environment": f"OPENAI_API_KEY={key}", "done": True}}
    headers = {"authorization": f"Bearer {key}"}
    assert await status_of(http.post(f"{proxy.url}/report", json=report, headers=headers)) == 204
    span = await Agent(http, proxy, attempt).span()
    assert span.attributes["environment"] == "OPENAI_API_KEY=agl-at-***"


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ("1.0", "the report is not a JSON object"),
        ("{}", "the report is not a JSON object with something in it"),
        ('{"rewrad": 1}', "no field 'rewrad'.*Did you mean 'reward'"),
        ('{"reward": "high"}', "must be a number, got 'high'"),
        ('{"reward": NaN}', "must be finite"),
        ('{"reward": {}}', "there is no reward in an empty dict"),
        ('{"annotation": {"gen_ai.operation.name": "chat"}}', "cannot stand for a model call"),
        ('{"annotation": {"prompt_token_ids": [1], "response_token_ids": [2]}}', "cannot stand for a model call"),
        ('{"annotation": {"a": ' + "[" * 1000 + "]" * 1000 + "}}", "the report is not a JSON object"),
        ('{"annotation": {"a": 1}, "reward": null}', "must be a number, got None"),
    ],
)
async def test_what_is_no_report_is_refused_and_leaves_nothing(agent: Agent, report: str, message: str) -> None:
    async with agent.http.post(url_of(agent.proxy, agent.rollout), data=report) as answer:
        assert answer.status == 400
        error = (await answer.json())["error"]

    assert error["code"] == "invalid_report"
    assert re.search(message, error["message"])
    assert await agent.spans() == []


async def test_key_of_an_attempt_reports_for_that_attempt_only(
    make_proxy: MakeProxy, engine: FakeEngine, store: InMemoryLightningStore, http: aiohttp.ClientSession
) -> None:
    proxy = await make_proxy(engine, key="secret")
    mine, other = await store.start_rollout("a"), await store.start_rollout("b")
    key = proxy.attempt_key(mine.rollout_id, mine.attempt.attempt_id)

    async def report(url: str, key: Any = key) -> int:
        async with http.post(url, json={"reward": 1}, headers={"authorization": f"Bearer {key}"}) as answer:
            return answer.status

    assert await report(url_of(proxy, mine)) == 204
    assert await report(f"{proxy.url}/report") == 204  # the key itself says whose it is
    assert await report(url_of(proxy, other)) == 403
    assert await report(url_of(proxy, mine), key="wrong") == 401
    await proxy.flush(mine.rollout_id, mine.attempt.attempt_id)
    assert len(await store.query_spans(mine.rollout_id)) == 2
    assert len(await store.query_spans(other.rollout_id)) == 0


async def test_report_of_nobody_is_refused(proxy: LLMProxy, http: aiohttp.ClientSession) -> None:
    async with http.post(f"{proxy.url}/report", json={"reward": 1}) as answer:
        assert answer.status == 403
        assert (await answer.json())["error"]["code"] == "unattributed"
