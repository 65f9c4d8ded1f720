"""What a worker shares with the other workers of its proxy."""

from collections.abc import Callable
from dataclasses import dataclass

from lightning_core.proxy.owner import Owner
from lightning_core.proxy.placing import Placing
from lightning_core.proxy.spending import Spending
from lightning_core.proxy.steering import Steering


@dataclass(frozen=True, slots=True)
class Links:
    """Leads to what all workers of a proxy have in common."""

    steering: Steering
    """Steers all of them."""
    spending: Spending | None
    """The budget; None for no limit."""
    placing: Placing
    on_attempt: Callable[[Owner, bool], None]
    """Is told of an attempt that has calls here which the store does not have yet, and (False) of one that has none any
    more."""
