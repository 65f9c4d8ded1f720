"""The model that rewrites prompts behind the run's model proxy, and in its budget."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from gepa_toys import FIRST, TRAIN, VAL, Models, succeed_where_easy
from lightning_gepa import GEPA
from lightning_proxy.openai_backend import OpenAIBackend
from openai import AsyncOpenAI

from lightning_core import LLM, FitResult, InMemoryLightningStore, PromptTemplate, Trainer, rollout
from lightning_core.registry import default_registry


@pytest.fixture
async def models() -> AsyncIterator[Models]:
    models = Models()
    async with models.serving():
        yield models


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing but the proxy says where models are."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "AGL_KEY"):
        monkeypatch.delenv(name, raising=False)
    with default_registry().register("backends", "openai", OpenAIBackend):
        yield


@rollout
async def agent(task: Any, prompt_template: PromptTemplate, llm: LLM) -> float:
    """Ask the small model something, and be rewarded by what the prompt is worth."""
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none", max_retries=0) as client:
        await client.chat.completions.create(
            model="small", messages=[{"role": "user", "content": task["question"]}], seed=0
        )
    return succeed_where_easy(prompt_template.template, task)


async def fit(
    models: Models, *names: str, store: InMemoryLightningStore | None = None, budget: Any = None, **options: Any
) -> FitResult:
    prices = {"input_cost_per_token": 0.001, "output_cost_per_token": 0.001}
    model_list = [
        {"model_name": name, "litellm_params": {"model": f"openai/{name}", "api_base": models.url, **prices}}
        for name in names
    ]
    trainer = Trainer(
        algorithm=GEPA(**{"reflection_lm": "editor", "max_metric_calls": 40, **options}),
        initial_resources={"main": PromptTemplate(template=FIRST)},
        n_runners=4,
        llm_proxy={"model_list": model_list},
        store=store or InMemoryLightningStore(),
        budget=budget,
    )
    return await trainer.fit_async(agent, TRAIN, val_dataset=VAL)


@pytest.mark.parametrize("calls", [14, 33])
async def test_the_budget_is_hard_and_a_run_with_more_of_it_goes_on_as_if_nothing_had_been(
    models: Models, calls: int
) -> None:
    whole = await fit(models, "small", "editor")
    models.requests.clear()
    store = InMemoryLightningStore()
    ended = await fit(models, "small", "editor", store=store, budget={"calls": calls})
    assert ended.status == "budget"
    assert len(models.requests) == calls
    assert ended.best_resources is not None
    result = await fit(models, "small", "editor", store=store, budget={"calls": 1000})
    assert result.status == "succeeded"
    for name in ("val_reward", "metric_calls", "reflection_calls", "candidates"):
        assert result.metrics[name] == whole.metrics[name]
    assert result.best_resources is not None
    assert whole.best_resources is not None
    assert result.best_resources["main"] == whole.best_resources["main"]
    assert result.budget is not None
    assert result.budget.used["calls"] == len(models.requests)
    # What was refused or cut off is asked for again, and nothing else.
    assert len(models.requests) <= whole.usage.agent.calls + whole.usage.algorithm.calls + 4
