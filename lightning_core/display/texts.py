"""Other people's texts, as they can stand on a terminal."""

import json
import re
from typing import Any

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
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


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
