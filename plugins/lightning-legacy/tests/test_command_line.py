"""Classes whose options are given on the command line."""

import sys
from typing import Any, List, Optional  # noqa: UP035  # as scripts have it

import pytest

import lightning_core as agl


class Model:
    def __init__(
        self,
        name: str,
        size: int = 10,
        is_frozen: bool = False,
        rate: float | None = 0.5,
        layers: list[int] = [],  # noqa: B006  # as scripts have it
        tags: list[Optional[str]] = [],  # noqa: B006, UP045
        parent: Optional[str] = "base",  # noqa: UP045
        anything: Any = None,
        plain="as it is",
    ) -> None:
        self.values = (name, size, is_frozen, rate, layers, tags, parent, anything, plain)


class Data:
    def __init__(self, folder: "str | None") -> None:
        self.folder = folder


def made_of(monkeypatch: pytest.MonkeyPatch, line: str, *classes: type) -> Any:
    monkeypatch.setattr(sys, "argv", ["train.py", *line.split()])
    return agl.lightning_cli(*classes)


def test_options_are_read_as_their_parameters_are_annotated(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "--model.name 7 --model.size 3 --model.is-frozen yes --model.rate none --model.layers 1 2 --model.tags a nil"
    model, data = made_of(monkeypatch, f"{line} --model.parent NULL --model.anything 1 --model.plain 2", Model, Data)
    assert model.values == ("7", 3, True, None, [1, 2], ["a", None], None, "1", "2")
    assert data.folder is None
    assert made_of(monkeypatch, "--model.name a", Model).values == (
        "a",
        10,
        False,
        0.5,
        [],
        [],
        "base",
        None,
        "as it is",
    )
    assert made_of(monkeypatch, "") == ()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--model.size 3", "the following arguments are required: --model.name"),
        ("--model.name a --model.size three", "invalid int value: 'three'"),
        ("--model.name a --model.rate fast", "'fast' cannot be read as float"),
        ("--model.name a --model.width 3", "unrecognized arguments: --model.width 3"),
    ],
)
def test_an_option_that_does_not_fit_ends_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    with pytest.raises(SystemExit):
        made_of(monkeypatch, line, Model)
    assert message in capsys.readouterr().err


def test_defaults_with_percent_signs_and_lists_of_anything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Split:
        def __init__(self, share: str = "80%", names: List = []) -> None:  # type: ignore[type-arg]  # noqa: B006, UP006
            self.values = (share, names)

    assert made_of(monkeypatch, "--split.names a b", Split).values == ("80%", ["a", "b"])
    with pytest.raises(SystemExit):
        made_of(monkeypatch, "--help", Split)
    assert "default: 80%" in capsys.readouterr().out


def test_a_trainer_is_made_with_underscores_hyphens_and_options_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = made_of(monkeypatch, "--trainer.n_runners 8 --trainer.max-rollouts 3 --trainer.port 4321", agl.Trainer)
    assert (trainer.n_runners, trainer.max_rollouts, trainer.port) == (8, 3, 4321)
    with pytest.warns(DeprecationWarning, match="use n_runners="):
        assert made_of(monkeypatch, "--trainer.n-workers 2", agl.Trainer).n_runners == 2
