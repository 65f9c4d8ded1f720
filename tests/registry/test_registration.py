"""Components that a process registers by itself."""

from typing import TYPE_CHECKING

import pytest

from lightning_core.errors import InvalidComponent, UnknownComponent
from lightning_core.registry import Registry

if TYPE_CHECKING:
    from tests.registry.conftest import Site


class Shelf:
    """A store, for all that a registry knows."""

    def __init__(self, boards: int = 1) -> None:
        self.boards = boards


class Cupboard(Shelf):
    """Another one."""


def test_a_registered_component_is_known_until_the_end_of_the_block() -> None:
    registry = Registry(())
    with registry.register("stores", "shelf", Shelf) as component:
        assert registry.components("stores") == [component]
        assert component.value == f"{__name__}:Shelf"
        assert component.origin == "this process"
        assert registry.build("stores", {"name": "shelf", "boards": 3}, expected=Shelf).boards == 3
    with pytest.raises(UnknownComponent, match="no store named 'shelf'; installed: none"):
        registry.load("stores", "shelf")


def test_without_a_block_it_stays_until_it_is_removed() -> None:
    registry = Registry(())
    registration = registry.register("stores", "shelf", Shelf)
    assert registry.load("stores", "shelf") is Shelf
    registration.remove()
    registration.remove()
    assert registry.components("stores") == []


def test_the_newest_of_one_name_goes_first_as_when_a_notebook_cell_is_run_again() -> None:
    registry = Registry(())
    ready = Shelf()
    registry.register("stores", "shelf", ready)
    with registry.register("stores", "shelf", Cupboard):
        assert registry.load("stores", "shelf") is Cupboard
        assert len(registry.components("stores")) == 1
    assert registry.build("stores", "shelf", expected=Shelf) is ready


def test_it_goes_before_what_is_installed(site: "Site") -> None:
    site.distribution("somebodys", "0.1", f"[lightning_core.strategies]\nlocal = {__name__}:Cupboard\n")
    registry = site.registry()
    with registry.register("strategies", "local", Shelf):
        assert registry.load("strategies", "local") is Shelf
        assert registry.load("strategies", "shm") is Shelf
        assert [each.distribution for each in registry.components("strategies")] == ["this process"]
    assert registry.load("strategies", "local") is Cupboard


def test_a_name_that_nobody_could_ask_for_is_refused() -> None:
    registry = Registry(())
    for name in ("", "pkg.mod:Shelf"):
        with pytest.raises(InvalidComponent, match="cannot be a component's name; it has to be a text without ':'"):
            registry.register("stores", name, Shelf)
    with pytest.raises(UnknownComponent, match=r"no kind of component named 'store'; .* Did you mean 'stores'\?"):
        registry.register("store", "shelf", Shelf)  # type: ignore[arg-type]
