"""The `agl` command itself: its subcommands, and what its exit status says."""

import importlib.metadata
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from lightning_core import cli
from lightning_core.cli import agl
from lightning_core.errors import AlgorithmError, ConfigError, InvalidComponent, LightningError
from lightning_core.registry import Registry

NOT_A_COMMAND = "a string"


@click.command()
@click.argument("what")
def fail(what: str) -> None:
    """Raise what is asked for."""
    raise {
        "algorithm": AlgorithmError("nothing to learn from"),
        "config": ConfigError("config.yaml: no 'agent'"),
        "component": InvalidComponent("no option 'x'"),
        "lightning": LightningError("no"),
        "interrupt": KeyboardInterrupt(),
        "bug": ZeroDivisionError("a bug"),
    }[what]


@click.command(hidden=True)
def secret() -> None:
    """Not listed."""


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command line with commands of its own, one of which cannot be imported."""
    information = tmp_path / "somebodys-0.1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys\nVersion: 0.1\n")
    (information / "entry_points.txt").write_text(
        "[lightning_core.commands]\nbroken = not_there:command\n"
        f"fail = {__name__}:fail\nsecret = {__name__}:secret\nstring = {__name__}:NOT_A_COMMAND\n"
    )
    distributions = importlib.metadata.distributions(path=[str(tmp_path)])
    registry = Registry(entry_point for each in distributions for entry_point in each.entry_points)
    monkeypatch.setattr(cli, "default_registry", lambda: registry)


@pytest.mark.parametrize(
    ("what", "status", "line"),
    [
        ("algorithm", 1, "Error: nothing to learn from"),
        ("lightning", 1, "Error: no"),
        ("config", 2, "Error: config.yaml: no 'agent'"),
        ("component", 2, "Error: no option 'x'"),
    ],
)
@pytest.mark.usefixtures("commands")
def test_our_errors_are_one_line_and_an_exit_status(what: str, status: int, line: str) -> None:
    result = CliRunner().invoke(agl, ["fail", what])
    assert result.exit_code == status
    assert result.stderr == f"{line}\n"
    assert result.stdout == ""


@pytest.mark.usefixtures("commands")
def test_what_nobody_expected_keeps_its_traceback() -> None:
    assert isinstance(CliRunner().invoke(agl, ["fail", "bug"]).exception, ZeroDivisionError)


@pytest.mark.usefixtures("commands")
def test_unknown_command_is_wrong_use_and_names_the_nearest() -> None:
    result = CliRunner().invoke(agl, ["fial"])
    assert result.exit_code == 2
    assert result.stderr.endswith(
        "Error: no command named 'fial'; installed: broken, fail, secret, string. Did you mean 'fail'?\n"
    )


@pytest.mark.usefixtures("commands")
def test_broken_command_says_whose_it_is() -> None:
    result = CliRunner().invoke(agl, ["broken"])
    assert result.exit_code == 2
    assert "Error: command 'broken' of somebodys 0.1 (not_there:command) cannot be loaded" in result.stderr


@pytest.mark.usefixtures("commands")
def test_command_that_is_none_is_refused() -> None:
    result = CliRunner().invoke(agl, ["string"])
    assert result.exit_code == 2
    assert result.stderr == "Error: command 'string' is 'a string', which is not a click command\n"


@pytest.mark.usefixtures("commands")
def test_help_lists_the_commands_and_survives_a_broken_one() -> None:
    result = CliRunner().invoke(agl, ["--help"])
    assert result.exit_code == 0
    assert "fail           Raise what is asked for." in result.stdout
    assert "broken         BROKEN: command 'broken' of somebodys 0.1" in result.stdout
    assert "Not listed" not in result.stdout


def test_version_is_that_of_the_distribution() -> None:
    result = CliRunner().invoke(agl, ["--version"])
    assert result.stdout == f"lightning-core {importlib.metadata.version('lightning-core')}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs", "rm"], "name runs to remove, or say --older-than AGE"),
        (["runs", "--runs-dir", "nowhere"], "--runs-dir is {here}/nowhere, which is not there; name the folder"),
    ],
)
def test_arguments_that_are_not_taken_are_one_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(agl, arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: " + message.format(here=tmp_path))
    assert len(result.stderr.splitlines()) == 1
