"""An algorithm from a function."""

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from lightning_core.algorithm.base import Algorithm
from lightning_core.errors import AlgorithmError, InvalidComponent
from lightning_core.registry import did_you_mean
from lightning_core.types import Dataset

_PARAMETERS = ("store", "train_dataset", "val_dataset", "initial_resources", "report")


class FunctionalAlgorithm(Algorithm):
    """Runs a function, which is given what it has parameters for.

    Args:
        function: Sync or async; see `algo`.

    Raises:
        InvalidComponent: When it has a parameter that nothing can be given for.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._wanted = list(inspect.signature(function).parameters)
        for name in self._wanted:
            if name not in _PARAMETERS:
                raise InvalidComponent(
                    f"algorithm {function.__qualname__} has a parameter {name!r} that nothing can be given for; "
                    f"it may have: {', '.join(_PARAMETERS)}{did_you_mean(name, _PARAMETERS)}"
                )
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self._function(*args, **kwargs)

    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self._function)

    def run(
        self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None
    ) -> Awaitable[None] | None:
        """Call the function with what it has parameters for.

        Raises:
            AlgorithmError: When there is a dataset that the function does not take.
        """
        datasets = {"train_dataset": train_dataset, "val_dataset": val_dataset}
        for name, dataset in datasets.items():
            if dataset is not None and name not in self._wanted:
                raise AlgorithmError(f"algorithm {self._function.__qualname__} takes no {name}, but there is one")
        given: dict[str, Any] = {"initial_resources": self.get_initial_resources(), "report": self.report, **datasets}
        if "store" in self._wanted:
            given["store"] = self.get_store()
        result: Awaitable[None] | None = self._function(**{name: given[name] for name in self._wanted})
        return result


def algo(function: Callable[..., Any]) -> FunctionalAlgorithm:
    """Make an algorithm of a function, sync or async.

    The function has any of these parameters, by name: `store`, `train_dataset`, `val_dataset`, `initial_resources`
    and `report` (which is `Algorithm.report`).

    Raises:
        InvalidComponent: When it has another parameter.
    """
    return FunctionalAlgorithm(function)
