"""The `agl` command. Its subcommands are components like all others, and only the one that is used is imported."""

import errno
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

import click

from lightning_core.errors import (
    BrokenPlugin,
    ConfigError,
    LightningError,
    RegistryError,
    RunFolderError,
    StoreFull,
    UnknownComponent,
)
from lightning_core.registry import default_registry
from lightning_core.texts import cut, visible

BUDGET = 3
"""The exit status of a run that its budget has ended."""

INTERRUPTED = 130
"""The exit status that shells know as ended by Ctrl-C."""

TERMINATED = 143
"""The exit status that shells know as ended by SIGTERM."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says where nothing more fits: on the disk, in a quota, in a file."""

MAX_ERROR_CHARACTERS = 1000
"""How much of each line of an error is shown."""


class WrongUse(click.ClickException):
    """The command was asked for something that cannot be done as it was asked."""

    exit_code = 2


_NAME_WIDTH = 13
_WHOLE_SENTENCE = 1000

SERVERS = ("store", "proxy")
"""The commands that `agl serve` offers; each is called by its own name, too."""

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Start": ("init", "run", "train", "resume", "worker"),
    "Look": ("runs", "show", "ui", "top", "report", "compare", "export", "import", "tasks"),
    "Check": ("environments", "check", "eval", "gate", "judge-check", "referee"),
    "Serve": (*(f"serve {name}" for name in SERVERS), "vllm"),
    "Other": ("plugins", "store compact"),
}
"""In which section of `agl --help` each command is; those of other distributions are added to the last one."""


class CommandGroup(click.Group):
    """The subcommands that the installed distributions offer, and what their exceptions mean to a shell.

    A `LightningError` becomes one line on stderr: exit status 2 when the command was used wrongly (config, names,
    options, runs), else 1. Ctrl-C is 130. Other exceptions are not expected and keep their traceback.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the names, from metadata alone; without `proxy`, which is `agl serve proxy`."""
        names = dict.fromkeys(component.name for component in default_registry().components("commands"))
        return [name for name in names if name != "proxy"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one subcommand; None for one that cannot be had, while a shell asks for completions.

        Raises:
            click.UsageError: There is no such subcommand.
            BrokenPlugin: It cannot be imported, or is not a click command.
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
            raise BrokenPlugin(f"command {cmd_name!r} is {command!r}, which is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the installed subcommands by section; one that is broken is listed with the reason."""
        placed = {name.split()[0] for names in SECTIONS.values() for name in names}
        others = [name for name in self.list_commands(ctx) if name not in placed]
        for section, names in SECTIONS.items():
            rows = []
            for name in (*names, *others) if section == "Other" else names:
                try:
                    command: click.Command | None = self
                    for word in name.split():
                        command = command.get_command(ctx, word) if isinstance(command, click.Group) else None
                except click.UsageError:  # it is not installed
                    continue
                except BrokenPlugin as exc:
                    rows.append((name.ljust(_NAME_WIDTH), f"BROKEN: {exc}"))
                    continue
                if command is not None and not command.hidden:
                    rows.append((name.ljust(_NAME_WIDTH), command.get_short_help_str(limit=_WHOLE_SENTENCE)))
            if rows:
                with formatter.section(section):
                    formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand."""
        try:
            return super().invoke(ctx)
        except LightningError as exc:
            is_wrong_use = isinstance(exc, ConfigError | RegistryError | RunFolderError)
            kind = WrongUse if is_wrong_use and not _comes_of_full_disk(exc) else click.ClickException
            raise kind(_readable(str(exc))) from exc
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

    What the exit status says: 0 succeeded, 1 failed, 2 wrong use, 3 the budget is used up, 4 the samples of agl gate do
    not tell, 130 interrupted, 143 terminated.
    """


class _Servers(click.Group):
    """The commands of `agl` that serve."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        installed = {component.name for component in default_registry().components("commands")}
        return [name for name in SERVERS if name in installed]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return agl.get_command(ctx, cmd_name) if cmd_name in SERVERS else None


@click.group(cls=_Servers)
def serve() -> None:
    """Serve a store, or models.

    \b
    Example:
      agl serve store --backend sqlite --path runs/store.db
      agl serve proxy models.yaml --store http://127.0.0.1:4747
    """


def main() -> None:
    """Run the `agl` command with the arguments of this process, and exit.

    SIGTERM ends it as Ctrl-C does, but for the exit status.
    """
    _open_standard_streams()
    terminations = _take_sigterm_for_interrupt()
    try:
        agl(prog_name="agl")
    except BrokenPipeError:
        # The reader of the output has closed it: there is no one to tell.
        _leave(1)
    except OSError as exc:
        if exc.errno != errno.ENOSPC:
            raise
        click.echo(f"Error: the output cannot be written: {exc.strerror}", err=True)
        _leave(1)
    except SystemExit as exc:
        if exc.code == INTERRUPTED:
            # Everything is printed and closed. A thread or coroutine of an agent that cannot be stopped must
            # not keep the process any longer.
            _leave(TERMINATED if terminations else INTERRUPTED)
        raise


def _take_sigterm_for_interrupt() -> list[int]:
    """Let SIGTERM do what Ctrl-C does from now on; return a list of those that came."""
    came: list[int] = []
    process = os.getpid()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # a fork of this one, which has nothing to tell
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        came.append(number)
        handler = signal.getsignal(signal.SIGINT)  # that of an event loop, while one runs
        if not callable(handler):  # switched off, as in a job that a shell runs in the background
            handler = signal.default_int_handler
        handler(signal.SIGINT, frame)

    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, interrupt)
    return came


def _comes_of_full_disk(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, StoreFull) or (isinstance(error, OSError) and error.errno in _NO_ROOM):
            return True
        error = error.__cause__
    return False


def _readable(message: str) -> str:
    """Return a message as it can be shown: what an agent or a plugin said may be in it."""
    from lightning_core.secrets import remember_environment  # late: commands that list things start fast

    remember_environment()
    return "\n".join(cut(visible(line), MAX_ERROR_CHARACTERS) for line in message.split("\n"))


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
