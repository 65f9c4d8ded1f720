"""A run with a model proxy: started with it, stopped with it."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from lightning_core.errors import ConfigError, LightningError
from lightning_core.runs.result import was_cut_off
from lightning_core.store import LightningStore
from lightning_core.trainer.proxies import is_remote
from lightning_core.types import AttemptedRollout, NamedResources, ProxyLLM

if TYPE_CHECKING:
    from lightning_core.proxy import LLMProxy, RemoteProxy

logger = logging.getLogger(__name__)

STATE = "lightning_core.proxy"
"""Under this name the store has where the run's proxy is."""

END_ATTEMPTS_SECONDS = 5.0
"""How long the calls of attempts that were cut off may take to be stored, by a proxy that goes on after the run."""

DRAIN_SECONDS = 1.0
"""How long calls that are cut off at the end may take to say so."""


@asynccontextmanager
async def proxied(proxy: "LLMProxy | RemoteProxy | None", store: LightningStore) -> AsyncIterator[dict[str, str]]:
    """Let a proxy serve a run during the block. One that runs already goes on after it.

    Calls that are under way at the end are cut off: nobody waits for them any more.

    Args:
        proxy: The proxy; None for none.
        store: The run's.

    Returns:
        Where proxies of this run were before it was taken up again, and where that is now; see `readdressed`.

    Raises:
        ConfigError: When it cannot be started.
    """
    if proxy is None:
        yield {}
        return
    is_ours = not proxy.is_running()
    proxy.set_store(store)
    if is_ours:
        try:
            await proxy.start()
        except ConfigError as exc:
            raise ConfigError(f"llm_proxy: {exc}") from exc
    is_interrupted = False
    try:
        yield await _move(store, proxy.url)
    except asyncio.CancelledError:
        is_interrupted = True
        raise
    finally:
        if not is_interrupted and (is_remote(proxy) or not is_ours):
            await _end_attempts(proxy, store)
        if is_ours:
            await _stop(proxy)


def readdressed(resources: NamedResources, moved: dict[str, str]) -> NamedResources:
    """Return resources whose models behind a proxy are where it is now.

    Args:
        resources: Stay as they are.
        moved: The former URL -> the present one.
    """
    changed: NamedResources = dict(resources)
    for name, resource in resources.items():
        if isinstance(resource, ProxyLLM):
            for before, now in moved.items():
                if resource.endpoint == f"{before}/v1":
                    changed[name] = resource.model_copy(update={"endpoint": f"{now}/v1"})
    return changed


async def _move(store: LightningStore, url: str) -> dict[str, str]:
    """Lead what a run has queued, and the resources that it has found, to where its proxy is by now."""
    state = await store.load_state(STATE)
    before = state.get("url") if isinstance(state, dict) else None
    if before == url:
        return {}
    moved = {} if before is None else {before: url}
    # The latest version comes last, and so stays the latest.
    has_changed = False
    for version in await store.query_resources(sort_by="update_time") if moved else ():
        resources = readdressed(version.resources, moved)
        has_changed = has_changed or resources != version.resources
        if has_changed:
            await store.update_resources(version.resources_id, resources)
    await store.save_state(STATE, {"url": url})
    return moved


async def _end_attempts(proxy: "LLMProxy | RemoteProxy", store: LightningStore) -> None:
    """Let a proxy that goes on cut off the calls of attempts that the run's end has cut off, and store what they were.

    One that stops does so by itself.
    """
    from lightning_core.proxy.flushing import flush_calls  # late: it takes an HTTP client with it

    general = proxy.as_resource(model="")

    async def end(rollout: AttemptedRollout) -> None:
        key = proxy.attempt_key(rollout.rollout_id, rollout.attempt.attempt_id)
        await flush_calls([general], rollout, key=key)

    try:
        async with asyncio.timeout(END_ATTEMPTS_SECONDS):
            attempted = [each for each in await store.query_rollouts() if isinstance(each, AttemptedRollout)]
            await asyncio.gather(*(end(each) for each in attempted if was_cut_off(each.attempt)))
    except (LightningError, TimeoutError) as exc:
        why = str(exc) or f"no answer within {END_ATTEMPTS_SECONDS:g} s"
        logger.warning("lightning.proxy_calls_not_known url=%s: %s", proxy.url, why)


async def _stop(proxy: "LLMProxy | RemoteProxy") -> None:
    from lightning_core.proxy import LLMProxy

    try:
        if isinstance(proxy, LLMProxy) and proxy.is_running():
            async with asyncio.timeout(DRAIN_SECONDS):
                await proxy.drain(0)
    except TimeoutError:
        logger.warning("lightning.proxy_calls_abandoned; they did not end within %g s", DRAIN_SECONDS)
    finally:
        await proxy.stop()
