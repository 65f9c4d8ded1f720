"""Text that can be written down: UTF-8, and with it JSON, OTLP and databases, has no lone surrogates; and no keys."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

ATTEMPT_KEY = re.compile(r"(agl-at-)[\w-]{12,}(?:\.[\w-]+)?", re.ASCII)
"""What opens the model calls and the reports of one attempt; its first group is not a secret."""


def well_formed(text: str) -> str:
    """Return a text with U+FFFD in place of each lone surrogate; one without any is returned as it is.

    Models that are cut off between two tokens make them, and so does Python for bytes that it cannot decode
    (`errors="surrogateescape"`, file names). Two that belong together become the character that they mean.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def well_formed_value(value: Any) -> Any:
    """Return a JSON-like value with well-formed texts, keys included; what holds none is returned as it is."""
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, Mapping):
        return {well_formed_value(key): well_formed_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        mended = [well_formed_value(item) for item in value]
        return tuple(mended) if isinstance(value, tuple) else mended
    return value


Text = Annotated[str, AfterValidator(well_formed)]
"""A field of a model that keeps its text well-formed."""


def hide_attempt_keys(text: str) -> str:
    """Replace the keys of attempts in a text; nothing else is changed in what was said."""
    return ATTEMPT_KEY.sub(r"\1***", text) if "agl-at-" in text else text
