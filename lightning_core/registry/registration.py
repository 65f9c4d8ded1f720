"""A component that this process registered by itself."""

from collections.abc import Callable
from types import TracebackType

from lightning_core.registry.component import Component

THIS_PROCESS = "this process"
"""Stands where a component of an installed distribution names the distribution."""


class Registration:
    """A component that a registry knows until `remove`, or until the end of a `with` block.

    Args:
        component: What is known of it.
        target: The component itself: a class, a function that returns an instance, or an instance.
        forget: Makes the registry forget it.
    """

    def __init__(self, component: Component, target: object, forget: "Callable[[Registration], None]") -> None:
        self.component = component
        self.target = target
        self._forget = forget

    def remove(self) -> None:
        """Make the registry forget the component. What was built from it stays. Twice is as once."""
        self._forget(self)

    def __enter__(self) -> Component:
        return self.component

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()
