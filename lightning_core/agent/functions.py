"""What a callable looks like: agents and algorithms are made of functions, partials, methods and callable objects."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from lightning_core.errors import InvalidAgent, LightningError, MissingResource
from lightning_core.registry import did_you_mean
from lightning_core.types import LLM, AttemptedRollout, NamedResources, PromptTemplate, ProxyLLM, Resource


def name_of(function: Callable[..., Any]) -> str:
    """Return a name for messages: the function's own, or that of a callable object's class."""
    function = _unwrapped(function)
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__qualname__


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Tell whether a call returns a coroutine, as far as one sees without calling.

    A plain function around a coroutine function, as decorators make it, does not show it.
    """
    function = _unwrapped(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  # the method is meant


def refuse_generator(function: Callable[..., Any], name: str) -> None:
    """Refuse an agent that yields.

    Raises:
        InvalidAgent: When the function is a generator function, sync or async.
    """
    function = _unwrapped(function)
    for each in (function, getattr(function, "__call__", None)):  # noqa: B004  # the method is meant
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            raise InvalidAgent(
                f"agent {name} has a yield, so a call of it runs nothing; return the reward instead, or give it to "
                "emit_reward"
            )


def is_given_by_name(parameter: inspect.Parameter) -> bool:
    """Tell whether `function(name=value)` reaches this very parameter."""
    return parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


def is_required(parameter: inspect.Parameter) -> bool:
    """Tell whether a call without a value for this parameter fails."""
    return parameter.default is parameter.empty and parameter.kind not in (
        parameter.VAR_POSITIONAL,
        parameter.VAR_KEYWORD,
    )


def wanted_parameters(
    function: Callable[..., Any], names: Sequence[str], *, made: str, error: type[LightningError], skipped: int = 0
) -> list[inspect.Parameter]:
    """Return the parameters of a function that something is given for, by name.

    Args:
        function: The function.
        names: What can be given.
        made: What is made of the function, such as `agent`.
        error: Raised where that is not possible.
        skipped: How many parameters come before, by position.

    Raises:
        LightningError: When it is not a function, or needs something else.
    """
    if not callable(function) or isinstance(function, type):
        raise error(f"{made} {function!r} is not a function")
    wanted = []
    for parameter in list(inspect.signature(function).parameters.values())[skipped:]:
        if parameter.name in names and is_given_by_name(parameter):
            wanted.append(parameter)
        elif is_required(parameter):
            raise error(
                f"{made} {name_of(function)} has a parameter {parameter.name!r} that nothing can be given for; "
                f"by name it may have: {', '.join(names)}{did_you_mean(parameter.name, names)}"
            )
    return wanted


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


ResourceT = TypeVar("ResourceT", bound=Resource)

_MAIN: dict[type[Resource], str] = {LLM: "main_llm", PromptTemplate: "main_prompt"}
"""The name of the resource that is given where there are several of its kind."""


def main_or_first(resources: NamedResources, kind: type[ResourceT]) -> ResourceT | None:
    """Return the main resource of a kind, or else the first one; None where there is none."""
    main = resources.get(_MAIN[kind])
    if isinstance(main, kind):
        return main
    return next((resource for resource in resources.values() if isinstance(resource, kind)), None)


def resolved(resources: NamedResources, rollout: AttemptedRollout, *, purpose: str | None = None) -> NamedResources:
    """Return the resources with the plain `LLM` of this attempt for every `ProxyLLM`.

    Args:
        resources: Stay as they are.
        rollout: The rollout with the attempt.
        purpose: What calls are for, where they are none of the agent's own; the proxy records it.
    """
    return {
        name: _bind_to_attempt(resource, rollout, purpose) if isinstance(resource, ProxyLLM) else resource
        for name, resource in resources.items()
    }


def missing(who: str, kind: type[Resource], resources: NamedResources) -> MissingResource:
    """Return the error that says which resource is needed, and which there are."""
    held = ", ".join(f"{name} ({type(resource).__name__})" for name, resource in resources.items()) or "none"
    return MissingResource(
        f"{who} needs a resource of type {kind.__name__}, but has: {held}; give it one in initial_resources"
    )


def _bind_to_attempt(resource: ProxyLLM, rollout: AttemptedRollout, purpose: str | None) -> LLM:
    llm = resource.with_attempted_rollout(rollout)
    if purpose is None:
        return llm
    attempt = llm.endpoint.removesuffix("/v1")
    version = llm.endpoint.removeprefix(attempt)
    return llm.model_copy(update={"endpoint": f"{attempt}/{purpose}{version}"})
