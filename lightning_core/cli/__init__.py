"""The `agl` command. Its subcommands are components like all others, and only the one that is used is imported."""

import errno
import os
import sys
from contextlib import suppress
from typing import Any, NoReturn

import click

from lightning_core.errors import BrokenPlugin, ConfigError, LightningError, RegistryError, UnknownComponent
from lightning_core.registry import default_registry

INTERRUPTED = 130
"""The exit status that shells know as ended by Ctrl-C."""


class Failure(click.ClickException):
    """Shown as one line on stderr."""

    exit_code = 1


class WrongUse(Failure):
    """The command was asked for something that cannot be done as it was asked."""

    exit_code = 2


class CommandGroup(click.Group):
    """The subcommands that the installed distributions offer, and what their exceptions mean to a shell.

    A `LightningError` becomes one line on stderr: exit status 2 when the command was used wrongly (config, names,
    options), else 1. Ctrl-C is 130. Other exceptions are not expected and keep their traceback.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the names, from metadata alone."""
        return list(dict.fromkeys(component.name for component in default_registry().components("commands")))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one subcommand; None for one that cannot be had, while a shell asks for completions.

        Raises:
            click.UsageError: There is no such subcommand.
            BrokenPlugin: It cannot be imported, or is no click command.
        """
        try:
            command = default_registry().load("commands", cmd_name)
        except RegistryError as exc:
            if ctx.resilient_parsing:
                return None
            if isinstance(exc, UnknownComponent):
                raise click.UsageError(str(exc), ctx) from exc
            raise
        if not isinstance(command, click.Command):
            raise BrokenPlugin(f"command {cmd_name!r} is {command!r}, which is no click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of subcommands; one that is broken is listed with the reason."""
        rows = []
        for name in self.list_commands(ctx):
            try:
                command = self.get_command(ctx, name)
            except BrokenPlugin as exc:
                rows.append((name, f"BROKEN: {exc}"))
                continue
            if command is not None and not command.hidden:
                rows.append((name, command.get_short_help_str(limit=formatter.width)))
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand."""
        try:
            return super().invoke(ctx)
        except LightningError as exc:
            failure = WrongUse if isinstance(exc, ConfigError | RegistryError) else Failure
            raise failure(str(exc)) from exc
        except KeyboardInterrupt as exc:
            click.echo(err=True)  # ends the line on which the terminal wrote ^C
            raise click.exceptions.Exit(INTERRUPTED) from exc


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lightning-core", message="%(package)s %(version)s")
def agl() -> None:
    """Make any LLM agent better at its tasks, without changing the agent.

    \b
    Example:
      agl init demo
      agl train demo/config.yaml

    What the exit status says: 0 succeeded, 1 failed, 2 wrong use, 130 interrupted.
    """


def main() -> None:
    """Run the `agl` command with the arguments of this process, and exit."""
    _open_standard_streams()
    try:
        agl(prog_name="agl")
    except BrokenPipeError:
        # Whoever read the output has had enough of it. There is nobody to tell.
        _leave(1)
    except OSError as exc:
        if exc.errno != errno.ENOSPC:
            raise
        click.echo(f"Error: the output cannot be written: {exc.strerror}", err=True)
        _leave(1)
    except SystemExit as exc:
        if exc.code == INTERRUPTED:
            # All is told and closed. What does not let itself be stopped, a thread or a coroutine of an agent, must
            # not keep the process any longer.
            _leave(INTERRUPTED)
        raise


def _open_standard_streams() -> None:
    """Give output that is closed somewhere to go: else the next file that is opened would take its place."""
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != descriptor:
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
            setattr(sys, name, os.fdopen(descriptor, "w", encoding="utf-8", closefd=False))


def _leave(status: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # closed already
            stream.flush()
    os._exit(status)
