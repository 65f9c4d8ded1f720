"""The marks around the template and the critique in what the models are sent.

The templates in `prompts/` write them out: `<prompt_template>` and `</prompt_template>` on lines of their own around
the template, which stands between them unchanged, and `<critique>` and `</critique>` around the critique. A request
has each of them at most once, so whoever reads it can rely on them.
"""

import re

_MARK = re.compile(r"</?(?:prompt_template|critique)>")


def find_mark(text: str) -> str | None:
    """Return the first mark in a text, or None."""
    found = _MARK.search(text)
    return found and found[0]


def without_marks(text: str) -> str:
    """Put square brackets in place of the angle brackets of marks."""
    return _MARK.sub(lambda mark: f"[{mark[0][1:-1]}]", text)
