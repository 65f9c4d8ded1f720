"""Graders: what scores an agent that knows nothing of rewards."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from lightning_core.agent.functions import (
    is_coroutine_function,
    is_required,
    main_or_first,
    missing,
    name_of,
    resolved,
    wanted_parameters,
)
from lightning_core.errors import InvalidComponent
from lightning_core.registry import default_registry, load_object
from lightning_core.types import LLM, AttemptedRollout, NamedResources, Span

_SCORED = ("task", "result", "spans", "rollout")
_PARAMETERS = (*_SCORED, "llm", "resources")


class Grader:
    """Scores what an agent returned, or what its trace says, with a function.

    The function, sync or async, has any of these parameters, by name:

    - `task`: the rollout's input;
    - `result`: what the agent returned, which may be anything;
    - `spans`: what the attempt recorded, in order, as it is stored;
    - `rollout`: the rollout, with its attempt;
    - `llm`: a model to judge with: the resource `main_llm`, or else the first `LLM`;
    - `resources`: the whole bundle.

    A `ProxyLLM` comes as the plain `LLM` of this attempt, for judging: such calls are recorded with the attempt and
    count in its usage and in the budget, but adapters leave them out, so no algorithm learns from them.

    Other parameters keep their defaults, and so does `llm` where there is no model. It returns a number, or a dict of
    named numbers, the first of which is the primary one. What else it does is not part of the trace. A sync one runs in
    a thread of its own.

    Args:
        function: The function, or `"package.module:function"`.
        model: The name of the model that `llm` is to be, at the same endpoint, such as another one of the proxy's model
            list; then without the agent's sampling parameters. None for the agent's.

    Raises:
        RegistryError: When it cannot be loaded, is not a function, or has an unknown parameter.
    """

    def __init__(self, function: Callable[..., Any] | str, *, model: str | None = None) -> None:
        self._function: Callable[..., Any] = load_object(function) if isinstance(function, str) else function
        parameters = wanted_parameters(self._function, _PARAMETERS, made="grader", error=InvalidComponent)
        self._wanted = {parameter.name: is_required(parameter) for parameter in parameters}
        """What something is given for, and whether the call fails without it."""
        self._model = model
        if self._wanted.keys().isdisjoint(_SCORED):
            raise InvalidComponent(
                f"grader {self.name} takes nothing to score; by name it may have: {', '.join(_PARAMETERS)}"
            )
        if model is not None and "llm" not in self._wanted:
            raise InvalidComponent(
                f"grader {self.name} is to judge with model {model!r}, but has no parameter 'llm'; add it"
            )

    @classmethod
    def of(cls, grader: "GraderSpec | None") -> "Grader | None":
        """Return a grader as it is, or make one of a function, a path, a name or a mapping. None for None.

        Args:
            grader: A function, the path of a function or of a grader, the name of an installed grader, or a mapping
                with its `name` and options: `{"name": "judge", "rubric": "..."}`.

        Raises:
            RegistryError: When there is no such grader, or it does not take the options.
            ValueError: When an option has a value that the grader refuses.
        """
        if isinstance(grader, Mapping) or (isinstance(grader, str) and ":" not in grader):
            return default_registry().build("graders", grader, expected=Grader)
        found = load_object(grader) if isinstance(grader, str) else grader
        return found if found is None or isinstance(found, Grader) else cls(found)

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return name_of(self._function)

    @property
    def wanted(self) -> frozenset[str]:
        """The names of the parameters that something is given for."""
        return frozenset(self._wanted)

    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return is_coroutine_function(self._function)

    def bind(
        self, *, result: Any, spans: Sequence[Span], rollout: AttemptedRollout, resources: NamedResources
    ) -> Callable[[], Any]:
        """Return the function with its arguments, to be called once.

        Args:
            result: What the agent returned.
            spans: What the attempt recorded.
            rollout: The rollout with the attempt.
            resources: The rollout's, as the agent's runner has them.

        Raises:
            MissingResource: When it needs a model, and there is none.
        """
        given = {"task": rollout.input, "result": result, "spans": list(spans), "rollout": rollout}
        if not self._wanted.keys() <= given.keys():
            from lightning_core.adapter.genai import JUDGE  # late: who decorates an agent does not pay for adapters

            judge_resources = given["resources"] = resolved(resources, rollout, purpose=JUDGE)
            llm = main_or_first(judge_resources, LLM)
            if llm is not None:
                other_model = {} if self._model is None else {"model": self._model, "sampling_parameters": {}}
                given["llm"] = llm.model_copy(update=other_model)
            elif self._wanted.get("llm"):
                raise missing(f"grader {self.name}", LLM, resources)
        return functools.partial(self._function, **{name: given[name] for name in self._wanted if name in given})


GraderSpec: TypeAlias = Grader | Callable[..., Any] | str | Mapping[str, Any]
"""A grader, a function, the path of either, an installed grader's name, or a mapping with its `name` and options."""
