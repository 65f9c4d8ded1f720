"""An agent from a function."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, overload

from lightning_core.agent.base import LitAgent
from lightning_core.agent.functions import (
    is_coroutine_function,
    is_required,
    main_or_first,
    missing,
    name_of,
    refuse_generator,
    resolved,
    wanted_parameters,
)
from lightning_core.errors import InvalidAgent
from lightning_core.types import LLM, AttemptedRollout, NamedResources, PromptTemplate, Resource, Rollout

_RESOURCES: dict[str, type[Resource]] = {"llm": LLM, "prompt_template": PromptTemplate}
_INJECTED = (*_RESOURCES, "resources", "rollout")

Decorator = Callable[[Callable[..., Any]], "FunctionalLitAgent"]


class FunctionalLitAgent(LitAgent[Any]):
    """Calls a function with the task and what else it has parameters for.

    Args:
        function: Sync or async; see `rollout`.
        strip_proxy: Whether it sees a `ProxyLLM` as the plain `LLM` of its attempt, ready to be called.

    Raises:
        InvalidAgent: When its parameters are not those of an agent.
    """

    def __init__(self, function: Callable[..., Any], *, strip_proxy: bool = True) -> None:
        # Its name and its docs; not its attributes, which are ours where a callable object has the same ones.
        functools.update_wrapper(self, function, updated=())
        self._function = function
        self._strip_proxy = strip_proxy
        self._injected = _check_parameters(function)
        self._is_async = is_coroutine_function(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self._function(*args, **kwargs)

    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return self._is_async

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
        if self._strip_proxy and isinstance(rollout, AttemptedRollout):
            resources = resolved(resources, rollout)
        arguments: dict[str, Any] = {}
        for parameter in self._injected:
            if parameter.name == "resources":
                arguments["resources"] = resources
            elif parameter.name == "rollout":
                arguments["rollout"] = rollout
            else:
                kind = _RESOURCES[parameter.name]
                resource = main_or_first(resources, kind)
                if resource is not None:
                    arguments[parameter.name] = resource
                elif is_required(parameter):
                    raise missing(f"agent {name_of(self._function)}", kind, resources)
        return arguments


def rollout(function: Callable[..., Any]) -> FunctionalLitAgent:
    """Make an agent of a function, sync or async.

    Its first parameter takes the task. Further ones are given by name:

    - `llm`: the resource `main_llm`, or else the first `LLM`; a `ProxyLLM` as the plain `LLM` of this attempt;
    - `prompt_template`: the resource `main_prompt`, or else the first `PromptTemplate`;
    - `resources`: the whole bundle;
    - `rollout`: the rollout, with its attempt.

    A parameter that has a default keeps it where nothing can be given. It returns what `LitAgent` says.

    Raises:
        InvalidAgent: When it has a parameter that nothing can be given for, or a `yield`.
    """
    return FunctionalLitAgent(function)


@overload
def llm_rollout(function: Callable[..., Any], *, strip_proxy: bool = True) -> FunctionalLitAgent: ...


@overload
def llm_rollout(function: None = None, *, strip_proxy: bool = True) -> Decorator: ...


def llm_rollout(
    function: Callable[..., Any] | None = None, *, strip_proxy: bool = True
) -> FunctionalLitAgent | Decorator:
    """Make an agent of a function with a parameter `llm`; with or without parentheses. See `rollout`.

    Args:
        function: The function.
        strip_proxy: False for an agent that wants a `ProxyLLM` as it is, to make its URL by itself.

    Raises:
        InvalidAgent: When it has no parameter `llm`, or an unknown required one.
    """
    return _decorated(function, "llm", strip_proxy=strip_proxy)


@overload
def prompt_rollout(function: Callable[..., Any]) -> FunctionalLitAgent: ...


@overload
def prompt_rollout(function: None = None) -> Decorator: ...


def prompt_rollout(function: Callable[..., Any] | None = None) -> FunctionalLitAgent | Decorator:
    """Make an agent of a function with a parameter `prompt_template`; with or without parentheses. See `rollout`.

    Raises:
        InvalidAgent: When it has no parameter `prompt_template`, or an unknown required one.
    """
    return _decorated(function, "prompt_template")


def _decorated(
    function: Callable[..., Any] | None, needs: str, *, strip_proxy: bool = True
) -> FunctionalLitAgent | Decorator:
    def decorate(function: Callable[..., Any]) -> FunctionalLitAgent:
        agent = FunctionalLitAgent(function, strip_proxy=strip_proxy)
        if needs not in inspect.signature(function).parameters:
            raise InvalidAgent(
                f"agent {name_of(function)} has no parameter {needs!r}, which this decorator gives it; "
                "add it, or use @rollout"
            )
        return agent

    return decorate if function is None else decorate(function)


def _check_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters that something is given for."""
    injected = wanted_parameters(function, _INJECTED, made="agent", error=InvalidAgent, skipped=1)
    name = name_of(function)
    refuse_generator(function, name)
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or not _takes_task(parameters[0]):
        raise InvalidAgent(
            f"agent {name} has to take the task as its first parameter, as in: def {name}(task); "
            "a decorator around it shows its parameters if it uses functools.wraps"
        )
    return injected


def _takes_task(parameter: inspect.Parameter) -> bool:
    positional = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    return positional and parameter.name not in _INJECTED
