"""Warnings of Lightning Core and of plugins, on stderr."""

import logging
import sys
from typing import TextIO

import click

from lightning_core.logs import setup_logging
from lightning_core.logs.setup import reset_logging


def show_warnings(context: click.Context) -> None:
    """Show warnings and errors that are logged, for as long as a command runs."""
    setup_logging("WARNING", console=False, extra_handlers=[_Stderr()])
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
