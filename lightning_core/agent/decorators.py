"""An agent from a function."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from lightning_core.agent.base import LitAgent
from lightning_core.errors import InvalidAgent, MissingResource
from lightning_core.registry import did_you_mean
from lightning_core.types import LLM, AttemptedRollout, NamedResources, PromptTemplate, ProxyLLM, Resource, Rollout

_INJECTED = ("llm", "prompt_template", "resources", "rollout")


class FunctionalLitAgent(LitAgent[Any]):
    """Calls a function with the task and what else it has parameters for.

    Args:
        function: Sync or async; see `rollout`.

    Raises:
        InvalidAgent: When its parameters are not those of an agent.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._injected = _check_parameters(function)
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self._function(*args, **kwargs)

    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self._function)

    def rollout(self, task: Any, resources: NamedResources, rollout: Rollout) -> Any:
        """Call the function.

        Raises:
            MissingResource: When it needs a resource that the bundle does not have.
        """
        return self._function(task, **self._arguments(resources, rollout))

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Rollout) -> Any:
        """Call the coroutine function; see `rollout`."""
        return await self._function(task, **self._arguments(resources, rollout))

    def _arguments(self, resources: NamedResources, rollout: Rollout) -> dict[str, Any]:
        given: dict[str, Any] = {"resources": resources, "rollout": rollout}
        if "llm" in self._injected:
            llm = self._first(LLM, resources)
            is_routed = isinstance(llm, ProxyLLM) and isinstance(rollout, AttemptedRollout)
            given["llm"] = llm.with_attempted_rollout(rollout) if is_routed else llm
        if "prompt_template" in self._injected:
            given["prompt_template"] = self._first(PromptTemplate, resources)
        return {name: given[name] for name in self._injected}

    def _first(self, kind: type[Resource], resources: NamedResources) -> Any:
        for resource in resources.values():
            if isinstance(resource, kind):
                return resource
        held = ", ".join(f"{name} ({type(resource).__name__})" for name, resource in resources.items()) or "none"
        raise MissingResource(
            f"agent {self._function.__qualname__} needs a {kind.__name__}, but its resources are: {held}; "
            "give it one in initial_resources"
        )


def rollout(function: Callable[..., Any]) -> FunctionalLitAgent:
    """Make an agent of a function, sync or async.

    Its first parameter takes the task. Further ones are given by name: `llm` (the first `LLM` of the resources),
    `prompt_template` (the first `PromptTemplate`), `resources` (the whole bundle), `rollout` (with its attempt).
    It returns what `LitAgent.rollout` may return.

    Raises:
        InvalidAgent: When it has a parameter that nothing can be given for.
    """
    return FunctionalLitAgent(function)


def _check_parameters(function: Callable[..., Any]) -> list[str]:
    if not callable(function):
        raise InvalidAgent(f"an agent is made of a function, not of {function!r}")
    name = getattr(function, "__qualname__", repr(function))
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or not _takes_task(parameters[0]):
        raise InvalidAgent(f"agent {name} has to take the task as its first parameter, as in: def {name}(task)")
    injected = []
    for parameter in parameters[1:]:
        if parameter.name in _INJECTED and parameter.kind is not parameter.POSITIONAL_ONLY:
            injected.append(parameter.name)
        elif parameter.default is parameter.empty:
            raise InvalidAgent(
                f"agent {name} has a parameter {parameter.name!r} that nothing can be given for; "
                f"after the task it may have: {', '.join(_INJECTED)}{did_you_mean(parameter.name, _INJECTED)}"
            )
    return injected


def _takes_task(parameter: inspect.Parameter) -> bool:
    positional = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    return positional and parameter.name not in _INJECTED
