"""On which line each value of a TOML text stands: `tomllib` reads the values, and does not tell."""

import re
import tomllib
from typing import NamedTuple

_TOKEN = re.compile(
    r"""
      (?P<string> \"{3}(?:\\.|[^\\])*?\"{3,5} | '{3}.*?'{3,5} | "(?:\\.|[^"\\])*" | '[^']*' )
    | (?P<skip> [ \t\r]+ | \#[^\n]* )
    | (?P<newline> \n )
    | (?P<mark> \[\[ | \]\] | [\[\]{}=,.] )
    | (?P<word> [^\s\[\]{}=,."'\#]+ )
    """,
    re.VERBOSE | re.DOTALL,
)


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def toml_lines(text: str) -> dict[tuple[str | int, ...], int]:
    """Return the line, from 1, of each key and element, by the keys and indexes that lead there.

    Args:
        text: Valid TOML; see that `tomllib` takes it first.
    """
    reader = _Reader(text)
    reader.read_document()
    return reader.lines


class _Reader:
    def __init__(self, text: str) -> None:
        self.lines: dict[tuple[str | int, ...], int] = {}
        self._tables_in: dict[tuple[str | int, ...], int] = {}
        """How many tables each array of tables has so far."""
        self._tokens: list[_Token] = []
        line = 1
        for match in _TOKEN.finditer(text):
            if match.lastgroup and match.lastgroup != "skip":
                self._tokens.append(_Token(match.lastgroup, match[0], line))
            line += match[0].count("\n")
        self._tokens.append(_Token("end", "", line))
        self._next = 0

    def read_document(self) -> None:
        table: tuple[str | int, ...] = ()
        while (token := self._tokens[self._next]).kind != "end":
            if token.kind == "newline":
                self._next += 1
            elif token.text in ("[", "[["):
                self._next += 1
                table = self._open_table(self._read_key(), in_array=token.text == "[[", line=token.line)
                self._next += 1  # the closing bracket
            else:
                self._read_pair(table)

    def _open_table(self, key: list[str], *, in_array: bool, line: int) -> tuple[str | int, ...]:
        place: tuple[str | int, ...] = ()
        for position, part in enumerate(key, start=1):
            place = (*place, part)
            self.lines.setdefault(place, line)
            if in_array and position == len(key):
                self._tables_in[place] = self._tables_in.get(place, 0) + 1
            if place in self._tables_in:
                place = (*place, self._tables_in[place] - 1)
                self.lines.setdefault(place, line)
        return place

    def _read_pair(self, table: tuple[str | int, ...]) -> None:
        line = self._tokens[self._next].line
        place = table
        for part in self._read_key():
            place = (*place, part)
            self.lines.setdefault(place, line)
        self._next += 1  # the equals sign
        self._read_value(place)

    def _read_key(self) -> list[str]:
        """Read a dotted key, up to what follows it."""
        parts = []
        while (token := self._tokens[self._next]).kind in ("word", "string") or token.text == ".":
            if token.kind == "string":
                parts.append(tomllib.loads(f"key = {token.text}")["key"])
            elif token.kind == "word":
                parts.append(token.text)
            self._next += 1
        return parts

    def _read_value(self, place: tuple[str | int, ...]) -> None:
        token = self._tokens[self._next]
        if token.text in ("[", "[["):
            if token.text == "[[":  # an array in an array
                self._tokens[self._next : self._next + 1] = [_Token("mark", "[", token.line)] * 2
            self._read_array(place)
        elif token.text == "{":
            self._read_inline_table(place)
        else:
            while (token := self._tokens[self._next]).kind in ("word", "string") or token.text == ".":
                self._next += 1  # a number, or a date with a time, has several

    def _read_array(self, place: tuple[str | int, ...]) -> None:
        self._next += 1
        index = 0
        while not self._closes("]"):
            token = self._tokens[self._next]
            if token.kind == "newline" or token.text == ",":
                self._next += 1
                continue
            self.lines[(*place, index)] = token.line
            self._read_value((*place, index))
            index += 1

    def _read_inline_table(self, place: tuple[str | int, ...]) -> None:
        self._next += 1
        while not self._closes("}"):
            if self._tokens[self._next].kind == "newline" or self._tokens[self._next].text == ",":
                self._next += 1
            else:
                self._read_pair(place)

    def _closes(self, bracket: str) -> bool:
        """Go past a closing bracket, when one is next."""
        token = self._tokens[self._next]
        if token.text == "]]" and bracket == "]":
            self._tokens[self._next : self._next + 1] = [_Token("mark", "]", token.line)] * 2
        if self._tokens[self._next].text != bracket:
            return False
        self._next += 1
        return True
