"""An algorithm from a function."""

import functools
from collections.abc import Awaitable, Callable
from typing import Any

from lightning_core.agent.functions import is_coroutine_function, name_of, wanted_parameters
from lightning_core.algorithm.base import Algorithm
from lightning_core.errors import AlgorithmError, InvalidComponent
from lightning_core.types import Dataset

_PARAMETERS = (
    "store",
    "train_dataset",
    "val_dataset",
    "adapter",
    "llm_proxy",
    "initial_resources",
    "rollout_config",
    "report",
)


class FunctionalAlgorithm(Algorithm):
    """Runs a function, which is given what it has parameters for.

    Args:
        function: Sync or async; see `algo`.

    Raises:
        InvalidComponent: When it has a parameter that nothing can be given for.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        # Its name and its docs; not its attributes, which are ours where a callable object has the same ones.
        functools.update_wrapper(self, function, updated=())
        self._function = function
        parameters = wanted_parameters(function, _PARAMETERS, made="algorithm", error=InvalidComponent)
        self._wanted = [parameter.name for parameter in parameters]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self._function(*args, **kwargs)

    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return is_coroutine_function(self._function)

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
                raise AlgorithmError(f"algorithm {name_of(self._function)} takes no {name}, but there is one")
        given: dict[str, Any] = {"initial_resources": self.get_initial_resources(), "report": self.report, **datasets}
        given["rollout_config"] = self.get_rollout_config()
        given["llm_proxy"] = self.get_llm_proxy()
        if "store" in self._wanted:
            given["store"] = self.get_store()
        if "adapter" in self._wanted:
            given["adapter"] = self.get_adapter()
        result: Awaitable[None] | None = self._function(**{name: given[name] for name in self._wanted})
        return result


def algo(function: Callable[..., Any]) -> FunctionalAlgorithm:
    """Make an algorithm of a function, sync or async.

    The function has any of these parameters, by name: `store`, `train_dataset`, `val_dataset`, `adapter`,
    `llm_proxy` (None where there is none), `initial_resources`, `rollout_config` and `report` (which is
    `Algorithm.report`). Other parameters keep their defaults.

    Raises:
        InvalidComponent: When it has another parameter without a default.
    """
    return FunctionalAlgorithm(function)
