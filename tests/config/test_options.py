"""What is known of the options of a component."""

from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pytest
from pydantic import BaseModel

from lightning_core.config.components import Options, is_plain

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]


class Client:
    """Something that only a program can make."""


class Clock(Protocol):
    def now(self) -> float: ...


class Limits(BaseModel):
    calls: int


class Component:
    def __init__(
        self,
        client: Client | None = None,
        unknown: "Unknown | None" = None,
        untyped=3,  # type: ignore[no-untyped-def]
        *,
        width: int = 4,
        temperature: "float" = 1.0,
        mode: Literal["a", "b"] = "a",
        names: tuple[str, ...] = ("x",),
        path: Path | str | None = None,
        limits: Limits | None = None,
        clock: Clock | None = None,
        callback: Callable[[], int] | None = None,
        _hidden: int = 0,
    ) -> None: ...


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("client", None),
        ("unknown", 5),
        ("untyped", "anything"),
        ("width", 2),
        ("temperature", 1),
        ("temperature", float("inf")),
        ("mode", "b"),
        ("names", ["a", "b"]),
        ("names", []),
        ("path", "a/b"),
        ("limits", {"calls": 3}),
        ("clock", None),
        ("width", date(2026, 1, 1)),
        ("not there", 5),
    ],
)
def test_value_that_may_be_right_is_let_through(name: str, value: object) -> None:
    assert Options(Component).wrong_type(name, value) is None


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("width", "2", "it has to be a whole number"),
        ("width", 2.5, "it has to be a whole number"),
        ("width", True, "it has to be a whole number"),
        ("width", None, "it has to be a whole number"),
        ("temperature", "hot", "it has to be a number"),
        ("mode", "c", "it has to be 'a' or 'b'"),
        ("names", "ab", "it has to be a list"),
        ("names", ["a", 5], "it has to be a text"),
        ("client", "sk-1", "only a program can give it, or it is left out"),
        ("callback", "a:b", "only a program can give it, or it is left out"),
        ("limits", {"calls": "many"}, "it has to be a whole number"),
    ],
)
def test_value_of_a_wrong_type_is_told_what_it_should_be(name: str, value: object, wanted: str) -> None:
    assert str(Options(Component).wrong_type(name, value)).startswith(wanted)


def test_defaults_are_those_that_a_config_file_can_say() -> None:
    assert dict(Options(Component).defaults()) == {
        "client": None,
        "unknown": None,
        "untyped": 3,
        "width": 4,
        "temperature": 1.0,
        "mode": "a",
        "names": ("x",),
        "path": None,
        "limits": None,
        "clock": None,
        "callback": None,
    }


def make(seed: int, **options: Any) -> Component:
    return Component(**options, untyped=seed)


def test_function_and_what_takes_any_option() -> None:
    options = Options(make)
    assert options.takes("anything")
    assert options.wrong_type("seed", "x") == "it has to be a whole number"
    assert list(options.defaults()) == []
    assert Options(partial(make, seed=1)).takes("seed")
    assert not Options(Component).takes("anything")


def test_nothing_is_known_of_a_ready_instance() -> None:
    options = Options(None)
    assert options.takes("anything")
    assert options.wrong_type("anything", 5) is None
    assert list(options.defaults()) == []


@pytest.mark.parametrize("value", [None, 1, "a", [1, ("b",)], {"a": {"b": 0.5}}])
def test_plain_values(value: object) -> None:
    assert is_plain(value)


@pytest.mark.parametrize("value", [object(), [object()], {1: 2}, {"a": Client()}, len])
def test_values_that_are_not_plain(value: object) -> None:
    assert not is_plain(value)
