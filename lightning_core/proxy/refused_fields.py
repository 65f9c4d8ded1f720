"""What a backend is asked besides what agents ask, and does not take."""

from collections.abc import Iterable, Set

_LEFT_OUT_SECONDS = 60.0
_CALLS = 2
"""So many different calls, and a refusal is the backend's own; that of one may be the call's."""
_NONE: frozenset[str] = frozenset()


class RefusedFields:
    """The fields that a replica refuses, whoever calls.

    A field is left out for a minute when two different calls were refused for it, and went well without it. One that
    was ever taken is known: then a refusal is that of a call which cannot have it, and of no other one.

    Args:
        always_asked: Fields that are never left out, because somebody says that the backend knows them.
    """

    def __init__(self, always_asked: Set[str] = _NONE) -> None:
        self._always_asked = always_asked
        self._taken: set[str] = set()
        self._calls: dict[str, set[int]] = {}
        """Those that were refused for a field."""
        self._until: dict[str, float] = {}
        """How long a field is left out, or if it is always asked, not told of again."""

    def at(self, now: float) -> Set[str]:
        """Return what is to be left out."""
        if not self._until:
            return _NONE
        return {name for name, until in self._until.items() if now < until} - self._always_asked

    def take(self, names: Iterable[str]) -> None:
        """Take note of fields of a call that went well."""
        for name in names:
            if name not in self._taken:
                self._taken.add(name)
                self._calls.pop(name, None)
                self._until.pop(name, None)

    def refuse(self, names: Iterable[str], call: object, now: float) -> Set[str]:
        """Take note of fields for which a call was refused that went well without them.

        Args:
            names: The fields.
            call: What tells it from others, and is equal when it is made again.
            now: The time.

        Returns:
            Those that somebody should hear of: each once, and one that is always asked once a minute.
        """
        news = set()
        for name in names:
            is_new = name not in self._until
            if name in self._always_asked:
                if not is_new and now < self._until[name]:
                    continue
                is_new = True
            elif name in self._taken:
                continue
            elif is_new:
                calls = self._calls.setdefault(name, set())
                calls.add(hash(call))
                if len(calls) < _CALLS:
                    continue
            self._until[name] = now + _LEFT_OUT_SECONDS
            if is_new:
                news.add(name)
        return news

    def clear(self) -> None:
        """Forget everything."""
        self._taken.clear()
        self._calls.clear()
        self._until.clear()
