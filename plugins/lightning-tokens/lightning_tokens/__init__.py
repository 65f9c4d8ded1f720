"""Models that take and give tokens: an object in this process, or the server of an engine."""

from lightning_tokens.backend import TokensBackend
from lightning_tokens.engine import Generated, TokenEngine, Tokenizer
from lightning_tokens.servers import SglangTokens, VllmTokens
from lightning_tokens.shapes import TokenToolParser, ToolParser, parse_hermes

__all__ = [
    "Generated",
    "SglangTokens",
    "TokenEngine",
    "TokenToolParser",
    "Tokenizer",
    "TokensBackend",
    "ToolParser",
    "VllmTokens",
    "parse_hermes",
]
