"""The console of the commands that show what agents and algorithms wrote."""

import io
import sys

from rich.console import Console


def plain_console() -> Console:
    """Make a console that shows text as it is.

    Prompts and failures are somebody else's text: nothing in them is markup, emoji or syntax, and no line break is
    added, so that a prompt can be copied. What the encoding of the output does not have is shown escaped.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    return Console(markup=False, emoji=False, highlight=False, soft_wrap=True)
