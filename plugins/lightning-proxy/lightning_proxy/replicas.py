"""The replicas of a model, and which one gets a call: that of the attempt's other calls, or the least loaded."""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from lightning_core.registry import did_you_mean
from lightning_core.store.clock import Clock
from lightning_proxy.backend import Backend, TokenCounts
from lightning_proxy.owner import Owner
from lightning_proxy.request import Refused, unavailable

logger = logging.getLogger(__name__)

K = TypeVar("K")

MAX_ATTEMPTS = 10_000
"""How many attempts are remembered with their replica; an older one gets a new one."""
MAX_RESPONSES = 100_000
"""How many stored responses are remembered; the newest."""
_LONGEST_ID = 1024
_FIRST_DOWN_SECONDS = 1.0
_LONGEST_DOWN_SECONDS = 30.0
_FAILURES_ALLOWED = 3
"""So many answers that are errors of the server, one after the other, and a replica counts as dead."""


@dataclass(slots=True, eq=False)
class Replica:
    """A backend that answers for a model, and how it stands."""

    model_name: str
    model: str
    """What the backend calls it."""
    backend: Backend
    input_price: float | None = None
    """US dollars for a token."""
    output_price: float | None = None
    cached_price: float | None = None
    """For a token of the prompt that the backend had in its prefix cache; None for that of any other."""
    written_price: float | None = None
    """For a token of the prompt that the provider wrote to its cache; None for that of any other."""
    written_for_an_hour_price: float | None = None
    """For one that it keeps there for an hour; None for that of any other written one."""
    refuses_fields: bool = False
    """Whether it ever refused what the proxy asks besides what agents ask."""
    priced_as: str | None = None
    """The name that a table of prices may know; None where the backend's prices are not those of its provider."""
    price_table: Backend | None = None
    """What knows the price where neither the entry nor the backend does; not asked where money is not limited."""
    is_owned: bool = True
    """Whether the proxy made the backend, and so closes it."""
    in_flight: int = 0
    failures: int = 0
    """In a row."""
    outages: int = 0
    """How often it was left out, or tried, since an answer of it last came to its end."""
    has_answered: bool = False
    """Whether it ever answered anything."""
    down_since: float = 0.0
    """When the last outage began, in the clock's time."""
    down_until: float = 0.0
    """In the clock's time; 0 while nothing is known against it."""
    lacked_tokens: bool = False
    """Whether an answer of it came without the token ids that it is said to give."""
    spec: object = field(default=None, repr=False)
    """What it was made from."""
    keys: Sequence[str] = field(default=(), repr=False)
    """What the entry of the model list has for the backend alone."""

    @property
    def converts(self) -> bool:
        """Whether calls of other APIs for conversations are made calls of chat for it: chat alone has tokens."""
        return self.backend.gives_tokens is True or self.backend.chat_only

    def hide_keys(self, text: str) -> str:
        """Return what the backend said without its keys."""
        return self.hide_keys_in(text.encode("utf-8", "replace")).decode()

    def hide_keys_in(self, data: bytes) -> bytes:
        """Return bytes that the backend sent without its keys."""
        for key in self.keys:
            data = data.replace(key.encode(), b"***")
        return data

    def cost(self, tokens: TokenCounts) -> float | None:
        """Return what a call costs, in US dollars, by the prices that were given, or else by the backend's.

        None where it is not known.
        """
        if self.input_price is None and self.output_price is None:
            return (self.price_table or self.backend).cost(tokens)
        input_price, output_price = self.input_price or 0.0, self.output_price or 0.0
        if (input_price and tokens.input is None) or (output_price and tokens.output is None):
            return None
        left, written = tokens.input or 0, tokens.written or 0
        total = left * input_price + (tokens.output or 0) * output_price
        written_price = input_price if self.written_price is None else self.written_price
        hour_price = written_price if self.written_for_an_hour_price is None else self.written_for_an_hour_price
        cached_price = input_price if self.cached_price is None else self.cached_price
        for_an_hour = min(tokens.written_for_an_hour or 0, written)
        priced = ((tokens.cached or 0, cached_price), (for_an_hour, hour_price), (written - for_an_hour, written_price))
        for count, price in priced:  # each token has one price, whatever a backend counts
            taken = min(count, left)
            left -= taken
            total += taken * (price - input_price)
        return total


class Replicas:
    """The replicas of all models.

    One that cannot be reached, or fails three times in a row, is down for a second: no call goes there. Then one call
    tries it, while it is down for the others for twice as long as before, up to 30 s. It is back when an answer begins.
    The proxy makes no calls of its own. Where all are down, the replica is tried whose wait ends first: a backend's own
    error says more than the proxy's.

    Args:
        clock: Where the time comes from.
        on_idle: Is given a replica that is not used any more.
    """

    def __init__(self, clock: Clock, on_idle: Callable[[Replica], None]) -> None:
        self._clock = clock
        self._on_idle = on_idle
        self._retired: set[Replica] = set()
        self._all: list[Replica] = []
        self._by_model: dict[str, list[Replica]] = {}
        self._of_attempt: OrderedDict[tuple[str, str], Replica] = OrderedDict()
        """By model and attempt."""
        self._assigned: Counter[Replica] = Counter()
        """How many attempts each replica got."""
        self._responses: OrderedDict[tuple[Owner | None, str], Replica] = OrderedDict()

    @property
    def all(self) -> Sequence[Replica]:
        """Those that calls go to."""
        return self._all

    def models(self) -> list[str]:
        """Return what agents may ask for, in the order of the list."""
        return list(self._by_model)

    def of(self, model: str | None) -> Sequence[Replica]:
        """Return the replicas of a model; None stands for the first one of the list."""
        first = self._all[0].model_name if self._all else ""
        return self._by_model.get(first if model is None else model, ())

    def replace(self, replicas: Sequence[Replica]) -> None:
        """Send calls to these from now on; `on_idle` gets each of the others when its last call has ended."""
        gone = [replica for replica in self._all if replica not in replicas]
        for replica in gone:
            del self._assigned[replica]
        self._of_attempt = OrderedDict((key, each) for key, each in self._of_attempt.items() if each not in gone)
        self._responses = OrderedDict((key, each) for key, each in self._responses.items() if each not in gone)
        self._all = list(replicas)
        self._by_model = {}
        for replica in replicas:
            self._by_model.setdefault(replica.model_name, []).append(replica)
        for replica in gone:
            if replica.in_flight:
                self._retired.add(replica)
            else:
                self._on_idle(replica)

    def place(self, model: str | None, attempt: str | None, *, tried: Collection[Replica] = ()) -> Replica:
        """Return the replica for a call: that of the attempt's other calls, as long as it can answer.

        A new attempt goes to the replica with the fewest calls under way; among equal ones to the one that got the
        fewest attempts.

        Args:
            model: What the agent asks for; None where its request names no model.
            attempt: Whose call it is; None for a call of no attempt.
            tried: Those that have just failed, which are chosen only where there are no others.

        Raises:
            Refused: When there is no such model.
        """
        candidates = self._candidates(model)
        up = [replica for replica in candidates if replica not in tried and self._is_up(replica)]
        if not up:
            others = [replica for replica in candidates if replica not in tried] or candidates
            return min(others, key=lambda replica: (replica.down_until, replica.in_flight))
        if attempt is None or len(candidates) == 1:
            return min(up, key=lambda replica: replica.in_flight)
        key = (candidates[0].model_name, attempt)
        chosen = self._of_attempt.get(key)
        if chosen not in up:
            chosen = min(up, key=lambda replica: (replica.in_flight, self._assigned[replica]))
            self._assigned[chosen] += 1
        _keep(self._of_attempt, key, chosen, MAX_ATTEMPTS)
        return chosen

    def keep_response(self, owner: Owner | None, response_id: str, replica: Replica) -> None:
        """Remember a response that a replica has stored for an attempt; the newest 100,000 of all attempts.

        One with an id of more than 1,024 characters is not remembered.
        """
        if len(response_id) <= _LONGEST_ID and replica in self._all:  # the list may have changed
            _keep(self._responses, (owner, response_id), replica, MAX_RESPONSES)

    def of_response(self, owner: Owner | None, response_id: str) -> Replica | None:
        """Return the replica that has an attempt's stored response; None where the attempt is not known to have it."""
        return self._responses.get((owner, response_id))

    def has_other(self, model: str | None, tried: Collection[Replica]) -> bool:
        """Whether a call could go at once to a replica besides these."""
        return any(other not in tried and self._is_up(other) for other in self._candidates(model))

    def begin(self, replica: Replica) -> None:
        """Count a call that goes to a replica. It is down for other calls while one tries whether it is back."""
        replica.in_flight += 1
        if replica.down_until and self._is_up(replica):
            self._put_down(replica)

    def end(self, replica: Replica) -> None:
        """Count its end."""
        replica.in_flight -= 1
        if replica in self._retired and not replica.in_flight:
            self._retired.remove(replica)
            self._on_idle(replica)

    def record_answer(self, replica: Replica) -> None:
        """Record an answer that begins: the replica is there. Whether it is sound, the answer's end says."""
        replica.down_until = 0.0

    def record_success(self, replica: Replica) -> None:
        """Record an answer that came to its end: the replica is sound."""
        if replica.outages:
            logger.info("lightning.backend_back backend=%s", replica.backend.address)
        replica.failures, replica.outages, replica.down_until = 0, 0, 0.0

    def record_failure(self, replica: Replica, reason: str, *, is_dead: bool) -> None:
        """Record a failure, after which the replica may be down. An outage is logged when it begins.

        Args:
            replica: Whose it is.
            reason: What happened, for the log.
            is_dead: Whether one is enough: it could not be reached.
        """
        if replica.down_until:  # the same outage
            return
        replica.failures += 1
        if is_dead or replica.failures >= _FAILURES_ALLOWED:
            if not replica.outages:
                logger.warning(
                    "lightning.backend_down backend=%s reason=%s; it is tried again from time to time",
                    replica.backend.address,
                    reason,
                )
                replica.down_since = self._clock.now()
            self._put_down(replica)

    def _put_down(self, replica: Replica) -> None:
        seconds = min(_FIRST_DOWN_SECONDS * 2 ** min(replica.outages, 10), _LONGEST_DOWN_SECONDS)
        replica.outages += 1
        replica.down_until = self._clock.now() + seconds

    def _candidates(self, model: str | None) -> list[Replica]:
        if model is None:
            if not self._all:
                raise unavailable("no_model", "the proxy has no model yet; it needs a model_list")
            return self._by_model[self._all[0].model_name]
        replicas = self._by_model.get(model)
        if replicas is None:
            models = self.models()
            message = f"no model named {model!r}; there are: {', '.join(models) or 'none'}{did_you_mean(model, models)}"
            raise Refused(404, "model_not_found", message)
        return replicas

    def _is_up(self, replica: Replica) -> bool:
        return not replica.down_until or self._clock.now() >= replica.down_until


def _keep(kept: OrderedDict[K, Replica], key: K, replica: Replica, most: int) -> None:
    kept[key] = replica
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)
