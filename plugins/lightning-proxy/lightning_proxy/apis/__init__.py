"""The APIs that the proxy understands, a file each, by path. They alone are recorded.

A file has all that is known of an API: its path, the names of its parameters, how an answer or a stream of it is read,
its errors, and how an engine that speaks chat answers it.
"""

from collections.abc import Mapping
from typing import Final

from lightning_proxy.apis.base import Assembler, Dialect
from lightning_proxy.apis.chat import ChatDialect, CompletionsDialect, EmbeddingsDialect
from lightning_proxy.apis.conversion import ConvertibleDialect
from lightning_proxy.apis.gemini import GeminiDialect
from lightning_proxy.apis.messages import MessagesDialect
from lightning_proxy.apis.responses import ResponsesDialect

GEMINI: Final = GeminiDialect()

CONVERTIBLE: Mapping[str, ConvertibleDialect] = {
    dialect.path: dialect for dialect in (MessagesDialect(), ResponsesDialect(), GEMINI)
}
"""Those that chat can answer, by `Dialect.path`."""

DIALECTS: Mapping[str, Dialect] = {
    **{dialect.path: dialect for dialect in (ChatDialect(), CompletionsDialect(), EmbeddingsDialect())},
    **CONVERTIBLE,
}
"""All of them, by `Dialect.path`."""


def dialect_of(below: str) -> Dialect | None:
    """Return the API of a path below `/v1`; None for any other path."""
    return next((dialect for dialect in DIALECTS.values() if dialect.serves(below)), None)


__all__ = ["CONVERTIBLE", "DIALECTS", "GEMINI", "Assembler", "ConvertibleDialect", "Dialect", "dialect_of"]
