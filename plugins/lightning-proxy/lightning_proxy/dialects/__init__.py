"""The APIs that the proxy understands, by path. They alone are recorded."""

from collections.abc import Mapping

from lightning_proxy.dialects.anthropic import AnthropicDialect
from lightning_proxy.dialects.base import Assembler, Dialect
from lightning_proxy.dialects.openai import ChatDialect, CompletionsDialect, EmbeddingsDialect
from lightning_proxy.dialects.responses import ResponsesDialect

DIALECTS: Mapping[str, Dialect] = {
    "/chat/completions": ChatDialect(),
    "/completions": CompletionsDialect(),
    "/embeddings": EmbeddingsDialect(),
    "/messages": AnthropicDialect(),
    "/responses": ResponsesDialect(),
}
"""By the path below `/v1`."""

__all__ = ["DIALECTS", "Assembler", "Dialect"]
