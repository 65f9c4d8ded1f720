"""A model that takes and gives tokens, as an object in this process."""

from lightning_proxy.tokens.backend import TokensBackend
from lightning_proxy.tokens.engine import Generated, TokenEngine, Tokenizer
from lightning_proxy.tokens.shapes import TokenToolParser, ToolParser, parse_hermes

__all__ = ["Generated", "TokenEngine", "TokenToolParser", "Tokenizer", "TokensBackend", "ToolParser", "parse_hermes"]
