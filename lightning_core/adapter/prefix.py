"""Finds, among many token sequences, the longest one that a prompt begins with."""

from collections.abc import Sequence
from typing import Generic, TypeVar

RowT = TypeVar("RowT")


class _Node(Generic[RowT]):
    __slots__ = ("children", "edge", "rows")

    def __init__(self, edge: list[int]) -> None:
        self.edge = edge
        """The tokens between the node above and this one."""
        self.rows: list[RowT] = []
        """The rows whose tokens end here, the newest last."""
        self.children: dict[int, _Node[RowT]] = {}
        """By first token."""


class OpenRows(Generic[RowT]):
    """Rows by their tokens: a radix tree, so that a prefix that many rows share is compared once.

    Finding takes time linear in the prompt, adding and extending in the tokens that are new, however many rows there
    are.
    """

    def __init__(self) -> None:
        self._root: _Node[RowT] = _Node([])

    def find(self, prompt: Sequence[int]) -> "Match[RowT]":
        """Find the row whose tokens are the longest beginning of this prompt; of equal rows the newest.

        Args:
            prompt: Token ids.

        Returns:
            The match; its `row` is None when no row is a beginning of the prompt.
        """
        node, length = self._root, 0
        best, best_length = node, length
        while length < len(prompt):
            token = prompt[length]
            child = node.children.get(token) if type(token) is int else None
            if child is None:
                break
            piece = prompt[length : length + len(child.edge)]
            if (piece if isinstance(piece, list) else list(piece)) != child.edge:
                break
            node, length = child, length + len(child.edge)
            if node.rows:
                best, best_length = node, length
        return Match(best, best_length, node, length)

    def add(self, match: "Match[RowT]", row: RowT, tokens: Sequence[int]) -> None:
        """Add a row. The match is used up.

        Args:
            match: Where the row's prompt was looked for.
            row: The row.
            tokens: The row's tokens after the first `match.shared`.
        """
        _insert(match.deepest, row, list(tokens))

    def extend(self, match: "Match[RowT]", tokens: Sequence[int]) -> None:
        """Let the matched row go on with these tokens. The match is used up."""
        node = match.node
        row = node.rows.pop()
        if node.rows or node.children:
            _insert(node, row, list(tokens))
        else:
            node.edge.extend(tokens)
            node.rows.append(row)


class Match(Generic[RowT]):
    """Where a prompt left the rows."""

    __slots__ = ("deepest", "length", "node", "shared")

    def __init__(self, node: _Node[RowT], length: int, deepest: _Node[RowT], shared: int) -> None:
        self.node = node
        self.length = length
        """How many tokens the row has."""
        self.deepest = deepest
        self.shared = shared
        """How many of the prompt's tokens are known to be those of other rows."""

    @property
    def row(self) -> RowT | None:
        """The row, or None."""
        return self.node.rows[-1] if self.node.rows else None


def _insert(node: _Node[RowT], row: RowT, tokens: list[int]) -> None:
    while tokens:
        child = node.children.get(tokens[0])
        if child is None:
            leaf: _Node[RowT] = _Node(tokens)
            leaf.rows.append(row)
            node.children[tokens[0]] = leaf
            return
        shared = _shared_length(child.edge, tokens)
        if shared < len(child.edge):
            child = _split(node, child, shared)
        node, tokens = child, tokens[shared:]
    node.rows.append(row)


def _split(above: _Node[RowT], below: _Node[RowT], length: int) -> _Node[RowT]:
    """Put a node into the edge between two, after `length` tokens."""
    middle: _Node[RowT] = _Node(below.edge[:length])
    below.edge = below.edge[length:]
    middle.children[below.edge[0]] = below
    above.children[middle.edge[0]] = middle
    return middle


def _shared_length(one: list[int], other: list[int]) -> int:
    """Count the tokens that both begin with. Compares slices, which is faster than tokens, and linear as well."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
