"""Warnings of Lightning Core and of plugins, on stderr."""

import logging
import sys
from typing import TextIO

import click

verbose_option = click.option(
    "-v", "--verbose", is_flag=True, help="Log to stderr what else happens: each failure, with its traceback."
)


def show_warnings(context: click.Context, *, verbose: bool = False) -> None:
    """Show warnings and errors that are logged, for as long as a command runs; all that is logged where wanted."""
    from lightning_core.logs import setup_logging  # late: who asks for help does not pay for it
    from lightning_core.logs.secrets import remember_environment
    from lightning_core.logs.setup import reset_logging

    remember_environment()
    setup_logging("DEBUG" if verbose else "WARNING", console=False, extra_handlers=[_Stderr()])
    context.call_on_close(reset_logging)


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what is `sys.stderr` at that moment: a live display puts something there that keeps off its lines."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        """The stream of this moment."""
        return sys.stderr

    @stream.setter
    def stream(self, stream: TextIO) -> None:
        raise AttributeError("the stream is always sys.stderr")
