"""The models of the search behind the run's model proxy: counted, recorded, and in the run's budget."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web
from lightning_apo import APO
from lightning_apo.saved import STATE
from lightning_proxy.openai_backend import OpenAIBackend
from toy_models import ToyModels
from toy_run import FIRST, OPTIONS, TRAIN, VAL, succeed_where_easy

from lightning_core import LLM, InMemoryLightningStore, NamedResources, PromptTemplate, Trainer, rollout
from lightning_core.adapter import read_model_calls
from lightning_core.algorithm.own_calls import is_of_algorithm
from lightning_core.errors import InvalidInput
from lightning_core.registry import default_registry

SEARCH = {**OPTIONS, "beam_rounds": 1}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing but the proxy says where models are."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "AGL_KEY"):
        monkeypatch.delenv(name, raising=False)
    with default_registry().register("backends", "openai", OpenAIBackend):
        yield


@rollout
async def agent(task: Any, prompt_template: PromptTemplate, llm: LLM | None = None) -> float:
    assert llm is not None
    return succeed_where_easy(prompt_template.template, task)


def model_list(models: ToyModels, *names: str) -> list[dict[str, Any]]:
    prices = {"input_cost_per_token": 0.001, "output_cost_per_token": 0.001}
    return [
        {"model_name": name, "litellm_params": {"model": f"openai/{name}", "api_base": models.url, **prices}}
        for name in names
    ]


def trainer(algorithm: Any, models: ToyModels, *names: str, **options: Any) -> Trainer:
    resources: NamedResources = {"main": PromptTemplate(template=FIRST)}
    return Trainer(
        algorithm=algorithm,
        initial_resources=resources,
        n_runners=4,
        llm_proxy={"model_list": model_list(models, *names)},
        **options,
    )


@pytest.fixture
def counting(models: ToyModels) -> ToyModels:
    """Models that say what each of their answers has used: 10 tokens in, 2 out."""

    def reply(request: dict[str, Any], answer: web.Response) -> web.Response:
        body = json.loads(answer.body)  # type: ignore[arg-type]
        body["usage"] = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        return web.json_response(body)

    models.finish = reply
    return models


async def test_the_calls_of_the_search_go_through_the_proxy(counting: ToyModels) -> None:
    run = trainer(APO(**SEARCH), counting, "critic", "editor")
    result = await run.fit_async(agent, TRAIN, val_dataset=VAL)
    assert result.status == "succeeded"
    calls = int(result.metrics["critic_calls"] + result.metrics["editor_calls"])
    assert calls == len(counting.requests) > 0
    assert result.metrics["own_input_tokens"] == 10 * calls
    used = result.usage.algorithm
    assert (used.calls, used.input_tokens, used.output_tokens) == (calls, 10 * calls, 2 * calls)
    assert used.cost == pytest.approx(0.012 * calls)
    (own,) = [each for each in await run.store.query_rollouts() if is_of_algorithm(each)]
    spans = await run.store.query_spans(own.rollout_id)
    assert {span.name for span in spans} == {"chat critic", "chat editor"}
    assert len(read_model_calls(spans)) == calls
    assert result.rollouts.succeeded == len(await run.store.query_rollouts()) - 1


async def test_the_budget_counts_them_and_the_best_so_far_is_kept(models: ToyModels) -> None:
    run = trainer(APO(**OPTIONS), models, "critic", "editor", budget={"calls": 20})
    result = await run.fit_async(agent, TRAIN, val_dataset=VAL)
    assert result.status == "budget"
    assert len(models.requests) == 20
    assert result.budget is not None
    assert result.budget.ended_by == "calls"
    assert result.best_resources is not None
    assert result.metrics["val_samples"] > 0


async def test_a_search_that_its_budget_has_ended_goes_on_as_if_it_had_not(models: ToyModels) -> None:
    async def history(store: InMemoryLightningStore) -> Any:
        state = (await store.load_state(STATE))["state"]
        for candidate in state["candidates"]:
            del candidate["resources_id"]
        return state

    whole, halved = InMemoryLightningStore(), InMemoryLightningStore()
    await trainer(APO(**OPTIONS), models, "critic", "editor", store=whole).fit_async(agent, TRAIN, val_dataset=VAL)
    first = trainer(APO(**OPTIONS), models, "critic", "editor", store=halved, budget={"calls": 20})
    assert (await first.fit_async(agent, TRAIN, val_dataset=VAL)).status == "budget"
    models.requests.clear()
    more = trainer(APO(**OPTIONS), models, "critic", "editor", store=halved, budget={"calls": 1000})
    result = await more.fit_async(agent, TRAIN, val_dataset=VAL)
    assert result.status == "succeeded"
    assert await history(halved) == await history(whole)
    assert result.budget is not None
    assert result.budget.used["calls"] == 20 + len(models.requests)


async def test_models_that_the_proxy_does_not_serve_are_asked_directly(
    models: ToyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "toy-key-of-the-user")
    monkeypatch.setenv("OPENAI_BASE_URL", models.url)
    result = await trainer(APO(**SEARCH), models, "small").fit_async(agent, TRAIN, val_dataset=VAL)
    assert result.status == "succeeded"
    assert models.keys == {"Bearer toy-key-of-the-user"}
    asked = result.metrics["critic_calls"] + result.metrics["editor_calls"]
    assert result.usage.algorithm.calls == asked > 0  # though no proxy saw them


@pytest.mark.parametrize(
    ("has_client", "names", "message"),
    [
        (False, ["small", "critic"], r"does not see the calls .* to critic and editor \(it serves small, critic\)"),
        (True, ["critic", "editor"], "the budget limits calls, .*: put these into the model_list, and"),
    ],
)
async def test_a_budget_that_could_not_count_the_search_is_refused(
    models: ToyModels, has_client: bool, names: list[str], message: str
) -> None:
    client = models.client() if has_client else None
    run = trainer(APO(client, **SEARCH), models, *names, budget={"calls": 5})
    with pytest.raises(InvalidInput, match=message):
        await run.fit_async(agent, TRAIN, val_dataset=VAL)
    assert models.requests == []
    # Time is counted in any case.
    run = trainer(APO(client, **SEARCH), models, *names, budget={"seconds": 3600})
    assert run.llm_proxy is not None
