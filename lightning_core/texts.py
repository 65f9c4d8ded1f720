"""Words on a terminal: other people's texts, numbers with their units, and the console that shows them."""

import io
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:  # commands that show little start fast
    from rich.console import Console

    from lightning_core.adapter.usage import Usage

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters but tab and line break, and those that turn the direction of a text."""


def visible(text: str) -> str:
    r"""Return a text without secrets, and without what a terminal would obey: that is escaped, as in `\x1b`."""
    from lightning_core.secrets import hide_keys  # late: commands that show no such text start fast

    return _escaped(hide_keys(text))


def visible_prompt(text: str) -> str:
    """Return a prompt as `visible` does a text; only secrets of the config and of resources are hidden in it."""
    from lightning_core.secrets import hide_in_prompt  # late, as above

    return _escaped(hide_in_prompt(text))


def _escaped(text: str) -> str:
    return _OBEYED.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def shortened(value: Any, limit: int) -> str:
    """Return a text, or a value as JSON, in one line of at most so many characters."""
    from lightning_core.secrets import hide_keys_in  # late, as above

    if not isinstance(value, str):
        value = json.dumps(hide_keys_in(value), ensure_ascii=False, default=repr, skipkeys=True)
    words: str = value
    return cut(visible(" ".join(words.split())), limit)


def cut(line: str, limit: int) -> str:
    """Return a line of at most so many characters."""
    return line if len(line) <= limit else line[: limit - 1] + "…"


def seconds(value: float) -> str:
    """Return a duration, as in `42 ms`, `1.2 s`, `12 s`, `3 min 5 s` or `2 h 10 min`."""
    if value < 0.9995:
        return f"{value * 1000:.{0 if value >= 0.01 else 1}f} ms"
    if value < 9.95:
        return f"{value:.2g} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, as in `1 call` or `2,345 calls`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def number(value: float) -> str:
    """Return a number with separators, as in `26,550` or `0.1234`."""
    return f"{value:,.0f}" if abs(value) >= 1000 or float(value).is_integer() else f"{value:.4g}"


def dollars(value: float) -> str:
    """Return an amount of money, as in `$0.0123` or `$1,234.50`."""
    return f"${value:.4f}" if value < 1 else f"${value:,.2f}"


def usage_words(usage: "Usage") -> str:
    """Say what was asked of models, as in `12 model calls, 3,400 tokens in, 560 out, $0.0123`; what is known of it."""
    parts = [counted(usage.calls, "model call"), *token_words(usage)]
    if usage.cost is not None:
        parts.append(dollars(usage.cost))
    return ", ".join(parts)


def token_words(usage: "Usage") -> list[str]:
    """Say how many tokens went in and came out; what is known of it."""
    if usage.input_tokens is None and usage.output_tokens is None:
        return []
    if usage.input_tokens is None:
        return [f"{usage.output_tokens:,} tokens out"]
    out = [] if usage.output_tokens is None else [f"{usage.output_tokens:,} out"]
    return [f"{usage.input_tokens:,} tokens in", *out]


_MEASURES = ("reward", "gain", "score", "accuracy", "loss")
"""A metric with one of these in its name says something where it is zero, too."""


def metric_words(metrics: Mapping[str, float]) -> dict[str, str]:
    """Say what metrics are, by name; `x_initial`, and `x_low` with `x_high`, are told with `x`.

    A count that is zero is left out.
    """
    words = {}
    for name, value in metrics.items():
        before, low, high = (metrics.get(name + ending) for ending in ("_initial", "_low", "_high"))
        text = number(value) if before is None else f"{before:,.3f} → {value:,.3f}"
        text += "" if low is None or high is None else f" [{low:,.3f}..{high:,.3f}]"  # is the value's, not the change's
        words[name] = text if before is None else f"{text} ({value - before:+,.3f})"
        if value == 0 and before is None and low is None and not any(each in name for each in _MEASURES):
            del words[name]
    for name in metrics:
        if f"{name}_initial" in metrics:
            words.pop(f"{name}_initial", None)
        if f"{name}_low" in metrics and f"{name}_high" in metrics:
            words.pop(f"{name}_low", None)
            words.pop(f"{name}_high", None)
    return words


def plain_console(*, stderr: bool = False, file: TextIO | None = None) -> "Console":
    """Make a console that shows text as it is, on stdout unless told otherwise.

    Prompts and failures are somebody else's text: nothing in them is markup, emoji or syntax, and no line break is
    added, so that a prompt can be copied. What the encoding of the output does not have is shown escaped. It is
    interactive only on a terminal, whatever `FORCE_COLOR` says.
    """
    from rich.console import Console

    stream = file or (sys.stderr if stderr else sys.stdout)
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    interactive = None if stream is not None and stream.isatty() else False
    return Console(
        file=file,
        stderr=stderr,
        markup=False,
        emoji=False,
        highlight=False,
        soft_wrap=True,
        force_interactive=interactive,
    )


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table in columns two spaces apart, for people, `grep` and `awk`."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
