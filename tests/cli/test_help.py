"""Every command says how it is used, and a shell can complete it."""

import re

import click
import pytest
from click.testing import CliRunner

from lightning_core.cli import agl


def commands() -> dict[str, click.Command]:
    """All commands that are installed, by what is typed for them."""
    found: dict[str, click.Command] = {"agl": agl}
    with agl.make_context("agl", [], resilient_parsing=True) as context:
        for name in agl.list_commands(context):
            command = agl.get_command(context, name)
            assert command is not None
            found[f"agl {name}"] = command
            if isinstance(command, click.Group):
                inner = click.Context(command, context, info_name=name)
                for each in command.list_commands(inner):
                    below = command.get_command(inner, each)
                    assert below is not None
                    found[f"agl {name} {each}"] = below
    return found


@pytest.mark.parametrize("name", commands())
def test_help_of_every_command_has_an_example_of_it(name: str) -> None:
    result = CliRunner().invoke(agl, [*name.split()[1:], "--help"])
    assert result.exit_code == 0
    example = result.stdout.partition("Example:\n")[2].split("\n\n")[0]
    assert re.search(rf"{name}\b", example), f"the help of {name!r} has no example of it"


@pytest.mark.parametrize("name", commands())
def test_every_option_of_every_command_says_what_it_does(name: str) -> None:
    options = [parameter for parameter in commands()[name].params if isinstance(parameter, click.Option)]
    assert [option.name for option in options if not option.help] == []


def test_help_has_each_command_in_a_section_and_its_text_uncut() -> None:
    shown = CliRunner().invoke(agl, ["--help"], terminal_width=80).stdout
    assert re.findall(r"^(\w+):$", shown, re.M) == ["Options", "Start", "Look", "Check", "Serve", "Other"]
    assert "..." not in shown.partition("\nStart:")[2]
    for name in commands():
        # Of these two the commands below them are listed; `agl runs` says what is below itself.
        if name not in ("agl", "agl serve", "agl store") and not name.startswith("agl runs "):
            assert re.search(rf"^  {name.removeprefix('agl ')}  ", shown, re.M), name
    assert re.search(r"^  serve store  .*$", shown, re.M)
    assert not re.search(r"^  (store|proxy|judge|runner)  ", shown, re.M)


@pytest.mark.parametrize(
    ("older", "name"),
    [
        ("store", "serve store"),
        ("store compact", "serve store compact"),
        ("proxy", "serve proxy"),
        ("runner", "worker"),
        ("judge", "judge-check"),
    ],
)
def test_older_name_is_the_same_command(older: str, name: str) -> None:
    shown = [CliRunner().invoke(agl, [*words.split(), "--help"]) for words in (older, name)]
    assert [each.exit_code for each in shown] == [0, 0]
    first, second = (each.stdout.partition("\n")[2] for each in shown)
    assert first == second


@pytest.mark.parametrize(("typed", "meant"), [("view", "ui"), ("list", "runs"), ("logs", "show"), ("trian", "train")])
def test_word_for_a_command_finds_it(typed: str, meant: str) -> None:
    result = CliRunner().invoke(agl, [typed])
    assert result.exit_code == 2
    assert f"Error: no command named {typed!r}; " in result.stderr
    assert result.stderr.endswith(f" Did you mean {meant!r}?\n")
