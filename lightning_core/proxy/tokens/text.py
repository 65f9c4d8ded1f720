"""The text of tokens that come one after the other."""

from collections.abc import Sequence

from lightning_core.proxy.tokens.engine import Tokenizer

_INCOMPLETE = "\ufffd"


class TextStream:
    """Turns tokens into text, each piece as soon as it is certain.

    A character may be of several tokens, and some tokenizers write a space only between tokens; so a few tokens before
    the new ones are decoded with them.

    Args:
        tokenizer: The model's.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start = 0
        self._told = 0

    def feed(self, token_ids: Sequence[int], *, is_last: bool) -> str:
        """Return the text that is certain by now, and was not told yet."""
        self._ids.extend(token_ids)
        before = self._decode(self._start, self._told)
        now = self._decode(self._start, len(self._ids))
        if not is_last and now.endswith(_INCOMPLETE):
            return ""
        self._start, self._told = self._told, len(self._ids)
        return now[len(before) :]

    def _decode(self, start: int, end: int) -> str:
        return self._tokenizer.decode(self._ids[start:end], skip_special_tokens=True)
