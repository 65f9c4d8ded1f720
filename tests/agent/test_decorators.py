import functools
import re
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest

from lightning_core.agent import FunctionalLitAgent, LitAgent, llm_rollout, prompt_rollout, rollout
from lightning_core.errors import InvalidAgent, MissingResource
from lightning_core.types import LLM, Attempt, AttemptedRollout, NamedResources, PromptTemplate, ProxyLLM, Rollout

MODEL = LLM(endpoint="http://localhost:1/v1", model="small")
PROMPT = PromptTemplate(template="Answer {question}")
RESOURCES: NamedResources = {"model": MODEL, "prompt": PROMPT}
GIVEN: dict[str, Any] = {"llm": MODEL, "prompt_template": PROMPT, "resources": RESOURCES}
SUBSETS = [
    chosen for size in range(5) for chosen in combinations(["llm", "prompt_template", "resources", "rollout"], size)
]


def attempted() -> AttemptedRollout:
    attempt = Attempt(rollout_id="ro-1", attempt_id="at-1", sequence_id=1, start_time=0)
    return AttemptedRollout(rollout_id="ro-1", input="task", start_time=0, attempt=attempt)


async def call(agent: FunctionalLitAgent, resources: NamedResources | None = None, of: Rollout | None = None) -> Any:
    """Call an agent as the runner does."""
    arguments = ("task", RESOURCES if resources is None else resources, of or attempted())
    result = agent.method_for("train")(*arguments)
    return await result if agent.is_async() else result


def with_parameters(names: tuple[str, ...], *, is_async: bool) -> Callable[..., Any]:
    """Define a function that returns what it was given."""
    namespace: dict[str, Any] = {}
    prefix = "async " if is_async else ""
    exec(f"{prefix}def agent({', '.join(('task', *names))}): return dict(locals())", namespace)
    function: Callable[..., Any] = namespace["agent"]
    return function


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("names", SUBSETS, ids=lambda names: "+".join(names) or "task alone")
async def test_agent_is_given_exactly_what_it_has_parameters_for(names: tuple[str, ...], is_async: bool) -> None:
    agent = rollout(with_parameters(names, is_async=is_async))
    current = attempted()

    given = await call(agent, of=current)

    assert agent.is_async() is is_async
    assert given == {"task": "task"} | {name: (GIVEN | {"rollout": current})[name] for name in names}


async def test_order_and_keyword_only_parameters_do_not_matter() -> None:
    @rollout
    def agent(question: str, /, rollout: Rollout, *, prompt_template: PromptTemplate, llm: LLM) -> Any:
        return question, rollout.rollout_id, prompt_template, llm

    assert await call(agent) == ("task", "ro-1", PROMPT, MODEL)


async def test_main_resource_of_a_kind_goes_before_the_first() -> None:
    main_llm, main_prompt = MODEL.model_copy(update={"model": "main"}), PromptTemplate(template="main")

    @rollout
    def agent(task: Any, llm: LLM, prompt_template: PromptTemplate) -> Any:
        return llm, prompt_template

    resources: NamedResources = {"model": MODEL, "prompt": PROMPT, "main_prompt": main_prompt, "main_llm": main_llm}
    assert await call(agent, resources) == (main_llm, main_prompt)
    swapped: NamedResources = {"main_llm": PROMPT, "main_prompt": MODEL}
    assert await call(agent, swapped) == (MODEL, PROMPT)


PROXY = ProxyLLM(endpoint="http://proxy/v1", model="small", api_key="key", sampling_parameters={"temperature": 0})


async def test_proxy_llm_is_left_as_it_is_where_it_is_asked_for() -> None:
    @llm_rollout(strip_proxy=False)
    def agent(task: Any, llm: LLM, resources: NamedResources) -> Any:
        return llm, resources

    assert await call(agent, {"model": PROXY}) == (PROXY, {"model": PROXY})


@pytest.mark.parametrize(
    ("decorate", "name"),
    [
        *((decorate, "llm") for decorate in (llm_rollout, llm_rollout(), llm_rollout(strip_proxy=True))),
        *((decorate, "prompt_template") for decorate in (prompt_rollout, prompt_rollout())),
    ],
)
async def test_decorator_of_a_kind_gives_its_resource(decorate: Any, name: str) -> None:
    agent = decorate(with_parameters((name,), is_async=True))
    assert await call(agent) == {"task": "task", name: GIVEN[name]}


def test_decorator_of_a_kind_wants_its_parameter() -> None:
    def agent(task: Any) -> None: ...

    with pytest.raises(InvalidAgent, match="agent has no parameter 'llm', which this decorator gives it; add it, or"):
        llm_rollout(agent)
    with pytest.raises(InvalidAgent, match="agent has no parameter 'prompt_template'"):
        prompt_rollout()(agent)


async def test_proxy_llm_is_resolved_for_the_attempt() -> None:
    @rollout
    def agent(task: Any, llm: LLM) -> LLM:
        return llm

    resolved = await call(agent, {"main_llm": PROXY})

    assert type(resolved) is LLM
    assert resolved.endpoint == "http://proxy/rollout/ro-1/attempt/at-1/v1"
    assert (resolved.model, resolved.api_key, resolved.sampling_parameters) == ("small", "key", {"temperature": 0})


async def test_missing_resource_is_named_with_what_is_there() -> None:
    @rollout
    def solver(task: Any, prompt_template: PromptTemplate) -> None: ...

    with pytest.raises(
        MissingResource,
        match=re.escape("solver needs a resource of type PromptTemplate, but has: model (LLM); give it one in"),
    ):
        await call(solver, {"model": MODEL})
    with pytest.raises(MissingResource, match="but has: none"):
        await call(solver, {})


async def test_resource_parameter_with_a_default_keeps_it_where_there_is_no_resource() -> None:
    @rollout
    def agent(task: Any, llm: LLM | None = None, effort: int = 3) -> Any:
        return llm, effort

    assert await call(agent) == (MODEL, 3)
    assert await call(agent, {}) == (None, 3)


def test_unknown_parameter_is_named_with_what_is_possible() -> None:
    def agent(task: Any, prompt_templat: PromptTemplate) -> None: ...

    expected = (
        "agent has a parameter 'prompt_templat' that nothing can be given for; by name it may have: "
        "llm, prompt_template, resources, rollout. Did you mean 'prompt_template'?"
    )
    with pytest.raises(InvalidAgent, match=re.escape(expected)):
        rollout(agent)


def test_agent_has_to_take_the_task_first() -> None:
    def nothing() -> None: ...
    def resource_first(llm: LLM) -> None: ...
    def keyword_only(*, task: Any) -> None: ...
    def hidden(*args: Any, **kwargs: Any) -> None: ...

    for function in (nothing, resource_first, keyword_only, hidden):
        expected = f"{function.__name__} has to take the task as its first parameter, as in: def "
        with pytest.raises(InvalidAgent, match=expected):
            rollout(function)
    with pytest.raises(InvalidAgent, match=r"functools\.wraps"):
        rollout(hidden)


def test_only_what_can_be_called_is_made_an_agent() -> None:
    class Solver:
        def __init__(self, task: Any) -> None: ...

    for thing in ("solver", 3, None, Solver, LitAgent()):
        with pytest.raises(InvalidAgent, match=r"^agent .* is not a function"):
            rollout(thing)  # type: ignore[arg-type]


def test_agent_is_still_the_function_to_whoever_calls_it() -> None:
    @rollout
    def solver(task: str, prompt_template: PromptTemplate) -> str:
        """Solve it."""
        return task + prompt_template.template

    assert solver("Q: ", PromptTemplate(template="x")) == "Q: x"
    assert solver("Q: ", prompt_template=PromptTemplate(template="y")) == "Q: y"
    assert (solver.__name__, solver.__doc__, solver.__module__) == ("solver", "Solve it.", __name__)  # type: ignore[attr-defined]


async def test_variadic_parameters_are_left_alone() -> None:
    @rollout
    def agent(task: Any, *args: Any, llm: LLM, **kwargs: Any) -> Any:
        return args, llm, kwargs

    assert await call(agent) == ((), MODEL, {})


async def test_method_of_an_object_is_an_agent() -> None:
    class Solver:
        def solve(self, task: Any, llm: LLM) -> Any:
            return self, llm

    solver = Solver()
    assert await call(rollout(solver.solve)) == (solver, MODEL)


async def test_partial_is_an_agent() -> None:
    async def solve(effort: int, task: str, llm: LLM, *, strict: bool) -> Any:
        return effort, task, llm, strict

    agent = rollout(functools.partial(solve, 3, strict=True))

    assert agent.is_async()
    assert await call(agent) == (3, "task", MODEL, True)
    with pytest.raises(MissingResource, match=r"solve needs a resource of type LLM"):
        await call(agent, {})


async def test_callable_object_is_an_agent_whatever_its_attributes_are_called() -> None:
    class Solver:
        def __init__(self) -> None:
            self._function = self.rollout_async = self._injected = "its own"

        async def __call__(self, task: str, llm: LLM) -> Any:
            return task, llm, self.rollout_async

    agent = rollout(Solver())

    assert agent.is_async()
    assert await call(agent) == ("task", MODEL, "its own")
    with pytest.raises(MissingResource, match="Solver needs a resource"):
        await call(agent, {})


async def test_decorated_function_shows_its_parameters_through_wraps() -> None:
    def doubled(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) * 2

        return wrapper

    @rollout
    @doubled
    def agent(task: Any, llm: LLM) -> Any:
        return (llm,)

    assert await call(agent) == (MODEL, MODEL)


def test_a_function_that_yields_is_refused_at_the_decorator() -> None:
    def each_step(task: str) -> Any:
        yield 1.0

    async def each_token(task: str) -> Any:
        yield 1.0

    class Stream:
        def __call__(self, task: str) -> Any:
            yield 1.0

    for function in (each_step, each_token, functools.partial(each_step), Stream()):
        with pytest.raises(
            InvalidAgent, match=r"agent \S+ has a yield, so a call of it runs nothing; return the reward"
        ):
            rollout(function)
