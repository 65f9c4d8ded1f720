"""Model calls of an algorithm itself: through the model proxy, which counts and records them, or past it."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lightning_core.adapter import read_usage
from lightning_core.adapter.usage import METADATA as USAGE, Usage, as_metadata, usage_in
from lightning_core.errors import ConfigError, Fault, InvalidTransition
from lightning_core.model_proxy import ModelProxy, flush_calls
from lightning_core.store import LightningStore
from lightning_core.types import LLM, AttemptedRollout, Rollout

logger = logging.getLogger(__name__)

_OF = "lightning_core.calls_of_algorithm"
"""Under this name the metadata of a rollout say which algorithm's calls it has."""

_PAST_PROXY = "lightning_core.usage_past_proxy"
"""Under this name the store has what calls of algorithms used that no proxy saw."""


def is_of_algorithm(rollout: Rollout) -> bool:
    """Whether a rollout only keeps the model calls of an algorithm; no agent runs it."""
    return _OF in (rollout.metadata or {})


@asynccontextmanager
async def own_calls(store: LightningStore, proxy: ModelProxy, *, algorithm: str) -> AsyncIterator[LLM]:
    """Give an algorithm an endpoint for its own calls during the block.

    They are spans of a rollout that is made for it, past the queue, and that ends with the block.

    Args:
        store: The run's.
        proxy: The model proxy, which runs.
        algorithm: What the algorithm is called.

    Returns:
        The endpoint and its key; its `model` is the proxy's first, and any other of the proxy's may be asked for.

    Raises:
        ConfigError: When the proxy has no model.
    """
    models = proxy.models()
    if not models:
        raise ConfigError(
            f"the algorithm {algorithm} calls a model through the model proxy, which has none; give it one, as in "
            "llm_proxy={'model_list': [...]}"
        )
    general = proxy.as_resource(model=models[0])
    rollout = await store.start_rollout({"calls of": algorithm}, metadata={_OF: algorithm})
    ids = rollout.rollout_id, rollout.attempt.attempt_id
    has_ended = False
    try:
        # The block is as long as the run, which may be days.
        key = proxy.attempt_key(*ids, expires=False)
        try:
            yield proxy.as_resource(*ids, model=models[0]).model_copy(update={"api_key": key})
            has_ended = True
        finally:
            await _flush(general, rollout, key)
    finally:
        await _end(store, rollout, has_ended=has_ended)


async def add_own_usage(store: LightningStore, usage: Usage) -> None:
    """Count calls that an algorithm made by a client of its own, past the model proxy.

    The run's result and summary then have them. One call of this function must end before the next begins.

    Args:
        store: The run's.
        usage: What the calls used; the total survives a kill.
    """
    await store.save_state(_PAST_PROXY, as_metadata(await usage_past_proxy(store) + usage))


async def usage_past_proxy(store: LightningStore) -> Usage:
    """Return what was counted by `add_own_usage` in this run."""
    return usage_in({USAGE: await store.load_state(_PAST_PROXY)})


async def cancel_own_calls(store: LightningStore) -> None:
    """End what a killed process has left: it must not be queued again, for no agent is to run it."""
    for rollout in await store.query_rollouts(status_in=["queuing", "requeuing", "preparing", "running"]):
        if is_of_algorithm(rollout):
            await store.update_rollout(rollout.rollout_id, status="cancelled")


async def _flush(general: LLM, rollout: AttemptedRollout, key: str | None) -> None:
    try:
        await flush_calls([general], rollout, key=key)
    except Fault as exc:  # what the algorithm has found is not lost with it
        logger.warning("lightning.own_calls_lost rollout_id=%s", rollout.rollout_id, exc_info=exc)


async def _end(store: LightningStore, rollout: AttemptedRollout, *, has_ended: bool) -> None:
    rollout_id, attempt_id = rollout.rollout_id, rollout.attempt.attempt_id
    usage = read_usage(await store.query_spans(rollout_id, attempt_id))
    try:
        await store.update_attempt(rollout_id, attempt_id, add_metadata={USAGE: as_metadata(usage)})
        if has_ended:
            await store.update_attempt(rollout_id, attempt_id, status="succeeded")
        else:
            await store.update_rollout(rollout_id, status="cancelled")
    except InvalidTransition as exc:  # it has ended meanwhile
        logger.warning("lightning.own_calls_ended rollout_id=%s: %s", rollout_id, exc)
