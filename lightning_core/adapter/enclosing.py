"""Which interval lies within which: for many at once, in n log n."""

from bisect import bisect_left
from collections.abc import Sequence

Interval = tuple[float, float]
"""When something began and ended."""

_Best = tuple[float, int]


def shortest_enclosing(intervals: Sequence[Interval]) -> list[int | None]:
    """Find for each interval the shortest longer one that begins no later and ends no earlier.

    Returns:
        For each interval the position of another one, the first of equally short ones; None where there is none.
    """
    order = sorted(range(len(intervals)), key=lambda place: (intervals[place][0], -intervals[place][1], place))
    found: list[int | None] = [None] * len(intervals)
    ends = sorted({end for _, end in intervals})
    tree = _SuffixMinimum(len(ends))
    equal: list[int] = []
    for number, place in enumerate(order):
        start, end = intervals[place]
        if equal and intervals[equal[0]] != (start, end):
            _enter(tree, ends, equal, intervals)
            equal = []
        # In this order whatever encloses an interval has come before it, and only its equals are longer by nothing.
        best = tree.best_from(bisect_left(ends, end))
        found[place] = best[1] if best is not None else None
        following = order[number + 1] if number + 1 < len(order) else None
        if following is not None and intervals[following][0] <= end:
            equal.append(place)
    return found


def _enter(tree: "_SuffixMinimum", ends: Sequence[float], places: Sequence[int], intervals: Sequence[Interval]) -> None:
    for place in places:
        start, end = intervals[place]
        tree.enter(bisect_left(ends, end), (end - start, place))


class _SuffixMinimum:
    """The least of what was entered at a position or after it (a Fenwick tree)."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._least: list[_Best | None] = [None] * (size + 1)

    def enter(self, position: int, value: _Best) -> None:
        node = self._size - position
        while node <= self._size:
            least = self._least[node]
            if least is None or value < least:
                self._least[node] = value
            node += node & -node

    def best_from(self, position: int) -> _Best | None:
        node = self._size - position
        best: _Best | None = None
        while node > 0:
            least = self._least[node]
            if least is not None and (best is None or least < best):
                best = least
            node -= node & -node
        return best
