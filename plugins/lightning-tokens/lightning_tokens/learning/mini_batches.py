"""Which rows the optimiser sees together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from lightning_tokens.learning.steps import rollout_of


@dataclass(frozen=True, slots=True)
class MiniBatches:
    """How the rows of a step are cut into parts.

    Each part has whole rollouts, as many as the others, give or take one. It is filled up with padding to the number
    of rows of the largest, so that all workers have as many.
    """

    parts: tuple[tuple[str, ...], ...]
    """The keys of each part's rows."""
    updates: tuple[int, ...]
    """Of each model, how often it is updated; a mini-batch of it is as many parts as come on one update."""
    n_workers: int
    multiple_of: int = 1
    """What the number of rows of a part is a multiple of, besides that of the workers."""

    @property
    def size(self) -> int:
        """How many rows each part has, with padding."""
        step = math.lcm(self.n_workers, self.multiple_of)
        return math.ceil(max(map(len, self.parts)) / step) * step

    @property
    def n_rows(self) -> int:
        """How many rows there are, with padding."""
        return self.size * len(self.parts)

    def rows_for_each(self, model: int) -> int:
        """Return how many rows a mini-batch of a model has, with padding."""
        return self.n_rows // self.updates[model]

    def order(self, keys: Sequence[str], costs: Sequence[float], *, n_workers: int | None = None) -> list[int]:
        """Return the places of the rows in the order in which workers take them.

        The first worker has the first rows, its share of each part after that of the part before, and so on. Within a
        part workers have about the same to do.

        Args:
            keys: Of all rows; what is in no part is padding.
            costs: Of all rows, how much there is to do.
            n_workers: Those of a model that has another number of them; `size` has to be a multiple of it.
        """
        n_workers = n_workers or self.n_workers
        place = {key: number for number, key in enumerate(keys)}
        known = {key for part in self.parts for key in part}
        padding = iter([number for number, key in enumerate(keys) if key not in known])
        shares: list[list[int]] = [[] for _ in range(n_workers)]
        for part in self.parts:
            rows = [place[key] for key in part]
            rows += [next(padding) for _ in range(self.size - len(rows))]
            for worker, share in enumerate(_shared(rows, costs, n_workers)):
                shares[worker] += share
        return [row for share in shares for row in share]


def make_mini_batches(
    keys: Sequence[str], *, updates: Sequence[int], n_workers: int, multiple_of: int = 1
) -> MiniBatches:
    """Cut the rows of a step into mini-batches.

    A step has as many updates as its config says, however many rows the rollouts have: so a mini-batch is a number of
    rollouts, as many as the others have, give or take one. A model that is to be updated more often than there are
    rollouts is updated as often as there are.

    Args:
        keys: Of each row, `<group>_<session>_<index>`. There is a row.
        updates: Of each model, such as the actor and the critic, how often it is updated.
        n_workers: How many share the rows of a mini-batch.
        multiple_of: What the number of rows of a part has to be a multiple of, for micro-batches of a fixed size.
    """
    rows_of: dict[str, list[str]] = {}
    for key in keys:
        rows_of.setdefault(rollout_of(key), []).append(key)
    n = len(rows_of)
    counts = tuple(min(each, n) for each in updates)
    n_parts = math.lcm(*counts)
    parts: list[list[list[str]]] = [[] for _ in range(n_parts)]
    largest_first = sorted(rows_of.values(), key=len, reverse=True)
    for begin in range(0, n, n_parts):
        # A round gives one rollout to each part, the largest to the one that has the fewest rows.
        takers = sorted(parts, key=lambda part: sum(map(len, part)))
        for part, rows in zip(takers, largest_first[begin : begin + n_parts], strict=False):
            part.append(rows)
    # Neighbours have about as many: as many parts as make a mini-batch, of whichever model, have its share of rollouts.
    shares = [(place + 1) * n // n_parts - place * n // n_parts for place in range(n_parts)]
    by_share = sorted(range(n_parts), key=lambda place: shares[place])
    part_at = dict(zip(by_share, sorted(parts, key=len), strict=True))
    placed = tuple(tuple(chain.from_iterable(part_at[place])) for place in range(n_parts))
    return MiniBatches(placed, counts, n_workers, multiple_of)


def _shared(rows: Sequence[int], costs: Sequence[float], n: int) -> list[list[int]]:
    """Share rows so that each worker has as many, and about the same to do."""
    shares: list[list[int]] = [[] for _ in range(n)]
    load = [0.0] * n
    dearest_first = sorted(rows, key=lambda row: costs[row], reverse=True)
    for begin in range(0, len(rows), n):
        takers = sorted(range(n), key=lambda worker: load[worker])
        for worker, row in zip(takers, dearest_first[begin : begin + n], strict=True):
            shares[worker].append(row)
            load[worker] += costs[row]
    return shares
