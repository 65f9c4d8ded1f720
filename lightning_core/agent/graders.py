"""Graders: what scores an agent that knows nothing of rewards."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from lightning_core.agent.functions import is_coroutine_function, is_given_by_name, is_required, name_of
from lightning_core.errors import InvalidComponent
from lightning_core.registry import did_you_mean, load_object
from lightning_core.types import AttemptedRollout, Span

_PARAMETERS = ("task", "result", "spans", "rollout")


class Grader:
    """Scores what an agent returned, or what its trace says, with a function.

    The function, sync or async, has any of these parameters, by name:

    - `task`: the rollout's input;
    - `result`: what the agent returned, which may be anything;
    - `spans`: what the attempt recorded, in order, as it is stored;
    - `rollout`: the rollout, with its attempt.

    Other parameters keep their defaults. It returns a number, or a dict of named numbers, the first of which is the
    primary one. What it does itself is not part of the trace. A sync one runs in a thread of its own.

    Args:
        function: The function, or `"package.module:function"`.

    Raises:
        RegistryError: When it cannot be loaded, is no function, or has a parameter that nothing can be given for.
    """

    def __init__(self, function: Callable[..., Any] | str) -> None:
        self._function: Callable[..., Any] = load_object(function) if isinstance(function, str) else function
        self._wanted = _check_parameters(self._function)

    @classmethod
    def of(cls, grader: "Grader | Callable[..., Any] | str | None") -> "Grader | None":
        """Return a grader as it is, or make one of a function or of a path; None for None."""
        return grader if grader is None or isinstance(grader, Grader) else cls(grader)

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return name_of(self._function)

    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return is_coroutine_function(self._function)

    def bind(self, *, result: Any, spans: Sequence[Span], rollout: AttemptedRollout) -> Callable[[], Any]:
        """Return the function with its arguments, to be called once."""
        given = {"task": rollout.input, "result": result, "spans": list(spans), "rollout": rollout}
        return functools.partial(self._function, **{name: given[name] for name in self._wanted})


def _check_parameters(function: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters that something is given for."""
    if not callable(function) or isinstance(function, type):
        raise InvalidComponent(f"a grader is made of a function, not of {function!r}")
    possible = f"a grader may have, by name: {', '.join(_PARAMETERS)}"
    wanted = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in _PARAMETERS and is_given_by_name(parameter):
            wanted.append(parameter.name)
        elif parameter.name in _PARAMETERS and parameter.kind is parameter.POSITIONAL_ONLY:
            raise InvalidComponent(
                f"grader {name_of(function)} takes {parameter.name!r} by position only; what a grader is given, it is "
                "given by name: leave out the '/' behind its parameters"
            )
        elif is_required(parameter):
            raise InvalidComponent(
                f"grader {name_of(function)} has a parameter {parameter.name!r} that nothing can be given for; "
                f"{possible}{did_you_mean(parameter.name, _PARAMETERS)}"
            )
    if not wanted:
        raise InvalidComponent(f"grader {name_of(function)} takes nothing to score; {possible}")
    return wanted
