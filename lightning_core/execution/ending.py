"""The store hears that the run has ended, and by it the runners that look for work there, wherever they are."""

import asyncio
import logging

from lightning_core.errors import StoreClosed, StoreError
from lightning_core.store import LightningStore

logger = logging.getLogger(__name__)

TELL_SECONDS = 5.0
"""How long a store may take to hear it."""

INTERRUPTED_TELL_SECONDS = 0.5
"""The same, when the run has failed or was interrupted: that should not take 2 s."""


async def tell_end(store: LightningStore, *, raised: BaseException | None = None) -> None:
    """Let there be no more work. What goes wrong is logged: runners that are elsewhere then wait on.

    Args:
        store: Where runners look for work.
        raised: What the run failed with, or was interrupted by; None where it has succeeded.
    """
    seconds = TELL_SECONDS if raised is None else INTERRUPTED_TELL_SECONDS
    try:
        async with asyncio.timeout(seconds):
            await store.end_run()
    except StoreClosed:  # by the algorithm, perhaps as the last thing that it does; who asks now hears of that
        return
    except (StoreError, TimeoutError) as exc:
        why = str(exc) or f"no answer within {seconds:g} s"
        logger.warning("lightning.run_end_not_told run_id=%s: %s; end runners elsewhere by hand", store.run_id, why)
