"""A model that takes and gives tokens, as an object in this process."""

from lightning_tokens.backend import TokensBackend
from lightning_tokens.engine import Generated, TokenEngine, Tokenizer
from lightning_tokens.shapes import TokenToolParser, ToolParser, parse_hermes

__all__ = ["Generated", "TokenEngine", "TokenToolParser", "Tokenizer", "TokensBackend", "ToolParser", "parse_hermes"]
