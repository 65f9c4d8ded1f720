"""The APIs that the proxy understands, a file each, by path. They alone are recorded.

A file has all that is known of an API: the names of its parameters, how an answer or a stream of it is read, its
errors, and how an engine that speaks chat answers it.
"""

from collections.abc import Mapping

from lightning_proxy.apis.base import Assembler, Dialect
from lightning_proxy.apis.chat import CHAT, ChatDialect, CompletionsDialect, EmbeddingsDialect
from lightning_proxy.apis.conversion import ConvertibleDialect
from lightning_proxy.apis.messages import MessagesDialect
from lightning_proxy.apis.responses import ResponsesDialect

CONVERTIBLE: Mapping[str, ConvertibleDialect] = {
    "/messages": MessagesDialect(),
    "/responses": ResponsesDialect(),
}
"""Those that chat can answer, by the path below `/v1`."""

DIALECTS: Mapping[str, Dialect] = {
    CHAT: ChatDialect(),
    "/completions": CompletionsDialect(),
    "/embeddings": EmbeddingsDialect(),
    **CONVERTIBLE,
}
"""All of them, by the path below `/v1`."""

__all__ = ["CONVERTIBLE", "DIALECTS", "Assembler", "ConvertibleDialect", "Dialect"]
