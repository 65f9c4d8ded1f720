from .backend import (
    TokensBackend as TokensBackend,
)
from .engine import (
    Generated as Generated,
    TokenEngine as TokenEngine,
    Tokenizer as Tokenizer,
)
from .servers import (
    SglangTokens as SglangTokens,
    VllmTokens as VllmTokens,
)
from .shapes import (
    TokenToolParser as TokenToolParser,
    ToolParser as ToolParser,
    parse_hermes as parse_hermes,
)

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
