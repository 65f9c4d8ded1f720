"""Options that several commands take."""

import functools
import os
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypedDict, TypeVar, cast

import click

from lightning_core.errors import ConfigError

ROOT_VARIABLE = "AGL_RUNS_DIR"
DEFAULT_ROOT = "runs"

HIDDEN = "***"
"""In the place of a secret that an override of a config has set."""


F = TypeVar("F", bound=Callable[..., Any])


def runs_dir_option(command: F) -> F:
    """Give a command the option `--runs-dir`, under the name `runs_dir`."""
    return click.option(
        "--runs-dir",
        type=click.Path(path_type=Path, file_okay=False),
        help=f"The folder of all runs, instead of {ROOT_VARIABLE} or ./{DEFAULT_ROOT}.",
    )(command)


def runs_root(given: Path | None) -> Path:
    """Return the folder of all runs.

    Raises:
        ConfigError: When it is a file.
    """
    named = os.environ.get(ROOT_VARIABLE) or DEFAULT_ROOT
    root = Path(named) if given is None else given
    if root.exists() and not root.is_dir():
        raise ConfigError(
            f"{ROOT_VARIABLE if given is None else '--runs-dir'} is {root}, which is not a folder; name one"
        )
    return root.absolute()


def with_runs_dir(command: str, given: Path | None) -> str:
    """Return a command line as it has to be typed: with the option where it was given."""
    return command if given is None else f"{command} --runs-dir {shlex.quote(str(given))}"


verbose_option = click.option(
    "-v", "--verbose", is_flag=True, help="Log to stderr what else happens: each failure, with its traceback."
)


class RunOptions(TypedDict):
    """What `run_options` gives to a command as `options`, as `run_changed` takes it."""

    overrides: tuple[str, ...]
    output: Path | None
    as_json: bool
    runs_dir: Path | None
    verbose: bool


def run_options(
    *,
    output: str = "Write the result (metrics and best resources, without keys) to this JSON file.",
    overrides: str = "Set a value over that of the file, as n_runners=16. The value is YAML. Can be repeated.",
) -> Callable[[F], F]:
    """Return what gives a command the options of one that starts a run, together: see `RunOptions`.

    Args:
        output: The help of `--output`.
        overrides: The help of `--set`.
    """

    def give(command: F) -> F:
        @functools.wraps(command)
        def gathered(*args: Any, **given: Any) -> Any:
            options = {name: given.pop(name) for name in RunOptions.__annotations__}
            return command(*args, options=options, **given)

        for option in (
            verbose_option,
            runs_dir_option,
            click.option(
                "--json",
                "as_json",
                is_flag=True,
                help="Write events as lines of JSON to stdout, and all else to stderr.",
            ),
            click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help=output),
            click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help=overrides),
        ):
            gathered = option(gathered)
        return cast("F", gathered)

    return give


def hidden_keys(overrides: Iterable[str]) -> list[str]:
    """Return the keys of overrides whose values are secrets, and were not kept."""
    return list(dict.fromkeys(key_of(each) for each in overrides if each.partition("=")[2] == HIDDEN))


def key_of(override: str) -> str:
    """Return the key of `key=value`."""
    return override.partition("=")[0].strip()
