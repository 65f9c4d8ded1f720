"""Every command says how it is used, and a shell can complete it."""

import os
import shutil
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from lightning_core.cli import agl
from lightning_core.cli.completion import SHELLS, completion


def commands() -> dict[str, click.Command]:
    """All commands that are installed, by what is typed for them."""
    found: dict[str, click.Command] = {"agl": agl}
    with agl.make_context("agl", [], resilient_parsing=True) as context:
        for name in agl.list_commands(context):
            command = agl.get_command(context, name)
            assert command is not None
            found[f"agl {name}"] = command
    return found


@pytest.mark.parametrize("name", commands())
def test_help_of_every_command_has_an_example_of_it(name: str) -> None:
    result = CliRunner().invoke(agl, [*name.split()[1:], "--help"])
    assert result.exit_code == 0
    example = result.stdout.partition("Example:\n")[2].split("\n\n")[0]
    assert f"{name} " in example, f"the help of {name!r} has no example of it"


@pytest.mark.parametrize("name", commands())
def test_every_option_of_every_command_says_what_it_does(name: str) -> None:
    options = [parameter for parameter in commands()[name].params if isinstance(parameter, click.Option)]
    assert [option.name for option in options if not option.help] == []


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_prints_what_the_shell_needs(shell: str) -> None:
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("there is no bash")
    result = CliRunner().invoke(completion, [shell])
    assert result.exit_code == 0
    assert f"_AGL_COMPLETE={shell}_complete" in result.stdout


def test_shell_that_is_not_known_is_wrong_use() -> None:
    result = CliRunner().invoke(completion, ["tcsh"])
    assert result.exit_code == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in result.stderr


@pytest.mark.parametrize(
    ("typed", "completions"), [("agl tr", ["plain,train"]), ("agl train --dr", ["plain,--dry-run"])]
)
def test_commands_and_options_are_completed(typed: str, completions: list[str]) -> None:
    words = typed.split()
    done = subprocess.run(
        [sys.executable, "-c", "from lightning_core.cli import main; main()"],
        env={**os.environ, "_AGL_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stdout.splitlines() == completions
