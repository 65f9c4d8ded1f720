"""What is known of the options of a component."""

from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pytest
from pydantic import BaseModel

from lightning_core.errors import ConfigError, InvalidComponent, InvalidOptions
from lightning_core.registry import check_options
from lightning_core.registry.options import Options, nearest

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
    ],
)
def test_value_that_may_be_right_is_let_through(name: str, value: object) -> None:
    assert Options(Component).faults("it", {name: value}) == {}


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
    faults = Options(Component).faults("it", {name: value})
    assert list(faults) == [name]
    assert f"; {wanted}" in faults[name]


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
    assert options.faults("it", {"anything": 5}) == {}
    assert options.faults("it", {"seed": "x"}) == {"seed": "it: seed is 'x'; it has to be a whole number"}
    assert list(options.defaults()) == []
    assert Options(partial(make, seed=1)).faults("it", {"seed": 2}) == {}
    assert list(Options(Component).faults("it", {"anything": 5})) == ["anything"]


def test_what_takes_the_rest_of_the_options_says_which_there_are() -> None:
    options = Options(make, Component)
    assert options.faults("it", {"seed": 1, "width": 2}) == {}
    faults = options.faults("it", {"widht": 2, "mode": 5})
    assert faults["widht"].endswith(". Did you mean 'width'?")
    assert faults["mode"] == "it: mode is 5; it has to be 'a' or 'b'"


def test_all_that_is_wrong_is_one_error() -> None:
    with pytest.raises(InvalidOptions) as raised:
        check_options("it", {"width": "2", "wdith": 2}, Component)
    assert list(raised.value.faults) == ["width", "wdith"]
    assert str(raised.value) == "\n".join(raised.value.faults.values())
    assert isinstance(raised.value, ConfigError)
    assert isinstance(raised.value, InvalidComponent)


def test_a_missing_option_is_a_fault_where_it_is_not_supplied() -> None:
    assert Options(make).faults("it", {}) == {}
    assert Options(make).faults("it", {}, supplied=["seed"]) == {}
    assert Options(make).faults("it", {}, supplied=[]) == {"": "it needs the option 'seed'; it takes: seed"}


def test_a_secret_is_not_shown() -> None:
    def connect(api_key: int) -> None: ...

    [fault] = Options(connect).faults("it", {"api_key": "sk-secret-1"}).values()
    assert fault == "it: api_key is a text; it has to be a whole number"


@pytest.mark.parametrize(
    ("name", "names", "meant"),
    [
        ("agentt", ["gen", "json"], None),  # 'gen' is in 'agentt', and begins otherwise
        ("agentt", ["gen", "agent"], "agent"),
        ("epochs", ["n_epochs"], "n_epochs"),
        ("timeout", ["timeout_seconds"], "timeout_seconds"),
        ("lml", ["llm"], "llm"),
    ],
)
def test_what_was_meant_is_near_or_begins_alike(name: str, names: list[str], meant: str | None) -> None:
    assert nearest(name, names) == meant


def test_of_several_kinds_the_one_that_fits_the_furthest_is_named() -> None:
    def make(clip: float | list[float] = 0.2) -> None: ...

    assert Options(make).faults("it", {"clip": [0.1, "x"]}) == {"clip": "it: clip.1 is a text; it has to be a number"}
    assert Options(make).faults("it", {"clip": "x"}) == {"clip": "it: clip is 'x'; it has to be a number or a list"}
