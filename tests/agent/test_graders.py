import re
from collections.abc import Callable
from typing import Any

import pytest

from lightning_core.agent import Grader
from lightning_core.errors import InvalidComponent, MissingResource, UnknownComponent
from lightning_core.types import LLM, NamedResources, PromptTemplate, ProxyLLM
from tests.agent.test_decorators import attempted


def exact(result: Any, task: Any) -> float:
    return float(result == task)


def score(function: Callable[..., Any], result: Any = "answer") -> Any:
    return Grader(function).bind(result=result, spans=[], rollout=attempted(), resources={})()


def test_grader_is_given_what_it_has_parameters_for() -> None:
    current = attempted()
    assert score(lambda task, result, spans, rollout: (task, result, spans, rollout)) == (
        "task",
        "answer",
        [],
        current,
    )
    assert score(lambda *, result: result) == "answer"
    assert score(exact, "task") == 1.0


def test_other_parameters_keep_their_defaults() -> None:
    assert score(lambda result, scale=3, *args, **kwargs: (scale, args, kwargs)) == (3, (), {})


def test_grader_may_be_a_path_or_a_grader() -> None:
    grader = Grader(f"{__name__}:exact")
    assert grader.name == "exact"
    assert Grader.of(grader) is grader
    assert Grader.of(None) is None
    with pytest.raises(UnknownComponent, match="has no 'exac'"):
        Grader.of(f"{__name__}:exac")


def test_unknown_parameter_is_named_with_what_is_possible() -> None:
    def judge(results: Any) -> float:
        return 1.0

    expected = (
        "judge has a parameter 'results' that nothing can be given for; by name it may have: task, result, "
        "spans, rollout, llm, resources. Did you mean 'result'?"
    )
    with pytest.raises(InvalidComponent, match=re.escape(expected)):
        Grader(judge)
    with pytest.raises(InvalidComponent, match="has a parameter 'result' that nothing can be given for; by name it"):
        Grader(lambda result, /: 1.0)


@pytest.mark.parametrize("thing", [3, None, float, [exact]])
def test_only_a_function_is_made_a_grader(thing: Any) -> None:
    with pytest.raises(InvalidComponent, match=r"^grader .* is not a function"):
        Grader(thing)


def test_grader_that_looks_at_nothing_is_refused() -> None:
    with pytest.raises(InvalidComponent, match="takes nothing to score; by name it may have: task, result"):
        Grader(lambda: 1.0)
    with pytest.raises(InvalidComponent, match="takes nothing to score"):
        Grader(lambda llm, resources: 1.0)


# A model to judge with

PROXIED: NamedResources = {
    "main_llm": ProxyLLM(endpoint="http://a:1/v1", model="small", api_key="k", sampling_parameters={"top_p": 0.5}),
    "own": LLM(endpoint="http://b:1/v1", model="own"),
    "main_prompt": PromptTemplate(template="Answer."),
}


def given(grader: Grader, resources: NamedResources) -> Any:
    return grader.bind(result="answer", spans=[], rollout=attempted(), resources=resources)()


def test_model_is_that_of_the_attempt_for_judging() -> None:
    llm: LLM = given(Grader(lambda result, llm: llm), PROXIED)
    assert llm == LLM(
        endpoint="http://a:1/rollout/ro-1/attempt/at-1/judge/v1",
        model="small",
        api_key="k",
        sampling_parameters={"top_p": 0.5},
    )
    resources: NamedResources = given(Grader(lambda result, resources: resources), PROXIED)
    assert resources == {**PROXIED, "main_llm": llm}
    without_version: NamedResources = {"main_llm": ProxyLLM(endpoint="http://a:1", model="small")}
    llm = given(Grader(lambda result, llm: llm), without_version)
    assert llm.endpoint == "http://a:1/rollout/ro-1/attempt/at-1/judge"


def test_another_model_is_asked_at_the_same_endpoint_without_the_agents_parameters() -> None:
    llm: LLM = given(Grader(lambda result, llm: llm, model="large"), PROXIED)
    assert (llm.model, llm.sampling_parameters) == ("large", {})
    assert llm.endpoint == "http://a:1/rollout/ro-1/attempt/at-1/judge/v1"
    with pytest.raises(InvalidComponent, match="grader exact is to judge with model 'large', but has no parameter 'll"):
        Grader(exact, model="large")


def test_grader_that_needs_a_model_says_so_where_there_is_none() -> None:
    def judge(result: Any, llm: LLM) -> float:
        return 1.0

    with pytest.raises(MissingResource, match=r"judge needs a resource of type LLM, but has: main_prompt \(PromptTem"):
        given(Grader(judge), {"main_prompt": PromptTemplate(template="Answer.")})
    assert score(lambda result, llm=None: llm) is None
