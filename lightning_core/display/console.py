"""Consoles that show what agents and algorithms wrote."""

import io
import sys

from rich.console import Console


def plain_console(*, stderr: bool = False) -> Console:
    """Make a console that shows text as it is, on stdout unless told otherwise.

    Prompts and failures are somebody else's text: nothing in them is markup, emoji or syntax, and no line break is
    added, so that a prompt can be copied. What the encoding of the output does not have is shown escaped. It is
    interactive only on a terminal, whatever `FORCE_COLOR` says.
    """
    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    interactive = None if stream is not None and stream.isatty() else False
    return Console(
        stderr=stderr, markup=False, emoji=False, highlight=False, soft_wrap=True, force_interactive=interactive
    )
