"""What is to be continued when it was killed: a name for its requests that outlives the process."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from lightning_core.store import LightningStore


@asynccontextmanager
async def continued(store: LightningStore, name: str, *, of: Any) -> AsyncIterator[str]:
    """Give the key of a piece of work, for the `request_id` of all that it asks of the store.

    Where the same work was begun in this run and was killed or cancelled, that is the key it had: what it asked for
    is there already. Work that came to its end, or failed, is begun anew.

    Args:
        store: Where the key is kept.
        name: Which piece of work of the run this is.
        of: What it is done to, as JSON has it. Another `of` is other work.
    """
    state = await store.load_state(name)
    if not isinstance(state, dict) or state["ended"] or state["of"] != of:
        state = {"key": secrets.token_hex(8), "of": of, "ended": False}
        await store.save_state(name, state)
    try:
        yield state["key"]
    except Exception:
        # It has come to an end, too: the next one begins anew.
        await store.save_state(name, {**state, "ended": True})
        raise
    await store.save_state(name, {**state, "ended": True})
