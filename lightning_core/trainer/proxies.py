"""The model proxy of a run, from whatever says one."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from lightning_core.errors import ConfigError, InvalidOptions, LightningError, RegistryError
from lightning_core.execution import ExecutionStrategy
from lightning_core.execution.local import LocalStrategy, leads
from lightning_core.model_proxy import KEY_VARIABLE, ModelProxy, flush_calls
from lightning_core.registry import default_registry, load_object
from lightning_core.runs.result import was_cut_off
from lightning_core.store import LightningStore
from lightning_core.types import LLM, AttemptedRollout, NamedResources, ProxyLLM

logger = logging.getLogger(__name__)

MAIN_LLM = "main_llm"
"""The resource that agents are given where a proxy is there and the resources have no model."""

_FORMS = "a ModelProxy, its options such as {'model_list': [...]}, the URL of one that runs by itself, or True"


def make_proxy(spec: object, *, store: LightningStore, strategy: ExecutionStrategy) -> ModelProxy | None:
    """Make the proxy of a trainer's runs.

    One that is made here listens where the strategy's store does, and has a key of its own wherever the keys of
    attempts reach the runners: then an agent calls for its own attempt alone.

    Args:
        spec: A proxy, returned as it is; its options, with its `name` where it is not `proxy`; the URL of one that
            runs by itself, or that with its key, as `{"url": ..., "key": ...}`; True for one whose models come later;
            the path of a class or an instance; None or False for none.
        store: The trainer's.
        strategy: Where runners live.

    Raises:
        ConfigError: Begins with `llm_proxy`, and says what is wrong: an option, the model list, a backend.
    """
    if spec is None or spec is False:
        return None
    try:
        if isinstance(spec, str) and "://" not in spec:
            spec = load_object(spec if ":" in spec else ":".join(spec.rsplit(".", 1)))
        if isinstance(spec, ModelProxy):
            proxy = spec
        else:
            kind, options = _kind(spec)
            proxy = kind.from_spec(options, store=store, strategy=strategy)
    except InvalidOptions:  # of the proxy itself
        raise
    except (ConfigError, RegistryError) as exc:
        raise ConfigError(f"llm_proxy: {exc}") from exc
    given = os.environ.get(KEY_VARIABLE)
    if proxy.key and given and proxy.key != given and leads(strategy) and not isinstance(strategy, LocalStrategy):
        raise ConfigError(
            f"llm_proxy has another key than the variable {KEY_VARIABLE}, which the store of the runners has; "
            "the keys of attempts are made of one, so leave it out"
        )
    return proxy


def _kind(spec: object) -> tuple[type[ModelProxy], object]:
    if isinstance(spec, type) and issubclass(spec, ModelProxy):
        return spec, True
    if spec is not True and not isinstance(spec, str | Mapping):
        raise ConfigError(f"it is of type {type(spec).__name__}; it is to be {_FORMS}")
    name = "proxy"
    if isinstance(spec, Mapping) and "name" in spec:
        name, spec = str(spec["name"]), {key: value for key, value in spec.items() if key != "name"}
    kind = default_registry().load("proxies", name)
    if not (isinstance(kind, type) and issubclass(kind, ModelProxy)):
        raise ConfigError(f"the proxy {name!r} is {kind!r}; it is to be a class that derives from ModelProxy")
    return kind, spec


def with_model(resources: NamedResources | None, proxy: ModelProxy | None) -> NamedResources | None:
    """Return resources with a model for the agent: the first of the proxy's, unless they have one, or it has none."""
    if proxy is None or not proxy.models() or any(isinstance(each, LLM) for each in (resources or {}).values()):
        return resources
    return {**(resources or {}), MAIN_LLM: proxy.as_resource(model=proxy.models()[0])}


STATE = "lightning_core.proxy"
"""Under this name the store has where the run's proxy is."""

END_ATTEMPTS_SECONDS = 5.0
"""How long the calls of attempts that were cut off may take to be stored, by a proxy that goes on after the run."""

DRAIN_SECONDS = 1.0
"""How long calls that are cut off at the end may take to say so."""


@asynccontextmanager
async def proxied(proxy: ModelProxy | None, store: LightningStore) -> AsyncIterator[dict[str, str]]:
    """Let a proxy serve a run during the block. One that runs already goes on after it.

    Calls that are under way at the end are cut off: no agent waits for them any more.

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
        if not is_interrupted and (proxy.is_remote or not is_ours):
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


async def _end_attempts(proxy: ModelProxy, store: LightningStore) -> None:
    """Let a proxy that goes on cut off the calls of attempts that the run's end has cut off, and store what they were.

    One that stops does so by itself.
    """
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


async def _stop(proxy: ModelProxy) -> None:
    try:
        if not proxy.is_remote and proxy.is_running():
            async with asyncio.timeout(DRAIN_SECONDS):
                await proxy.drain(0)
    except TimeoutError:
        logger.warning("lightning.proxy_calls_abandoned; they did not end within %g s", DRAIN_SECONDS)
    finally:
        await proxy.stop()
