"""The model proxy of a run, from whatever says one."""

import asyncio
import dataclasses
import inspect
import logging
import os
import secrets
from collections.abc import AsyncIterator, Container, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from lightning_core.errors import ConfigError, LightningError, RegistryError
from lightning_core.execution import ExecutionStrategy
from lightning_core.execution.local import LocalStrategy
from lightning_core.registry import Registry, default_registry, did_you_mean, load_object
from lightning_core.runs.result import was_cut_off
from lightning_core.store import LightningStore
from lightning_core.store.http.messages import KEY_VARIABLE
from lightning_core.superseded import superseded_options
from lightning_core.types import LLM, AttemptedRollout, NamedResources, ProxyLLM

if TYPE_CHECKING:
    from lightning_core.proxy import LLMProxy, RemoteProxy


logger = logging.getLogger(__name__)

MAIN_LLM = "main_llm"
"""The resource that agents are given where a proxy is there and the resources have no model."""

_EVERYWHERE = ("0.0.0.0", "::")

_FORMS = "an LLMProxy, its options such as {'model_list': [...]}, the URL of one that runs by itself, or True"


def make_proxy(
    spec: object, *, store: LightningStore, strategy: ExecutionStrategy, registry: Registry
) -> "LLMProxy | RemoteProxy | None":
    """Make the proxy of a trainer's runs.

    One that is made here listens where the strategy's store does, and has a key of its own wherever the keys of
    attempts reach the runners: then an agent calls for its own attempt alone.

    Args:
        spec: A proxy, returned as it is; its options; the URL of one that runs by itself, or that with its key, as
            `{"url": ..., "key": ...}`; True for one whose models come later; the path of a class or an instance; None
            or False for none.
        store: The trainer's.
        strategy: Where runners live.
        registry: Where backends are found.

    Raises:
        ConfigError: Begins with `llm_proxy`, and says what is wrong: an option, the model list, a backend.
    """
    if spec is None or spec is False:
        return None
    from lightning_core.proxy import LLMProxy, RemoteProxy  # late: it takes a server with it

    if isinstance(spec, str) and "://" not in spec:
        try:
            spec = load_object(spec if ":" in spec else ":".join(spec.rsplit(".", 1)))
        except RegistryError as exc:
            raise ConfigError(f"llm_proxy: {exc}") from exc
    if isinstance(spec, LLMProxy | RemoteProxy):
        _check_keys(spec, strategy)
        return spec
    kind = LLMProxy
    if isinstance(spec, type) and issubclass(spec, LLMProxy):
        kind, spec = spec, True
    if isinstance(spec, str):
        spec = {"url": spec}
    if spec is not True and not isinstance(spec, Mapping):
        raise ConfigError(f"llm_proxy is a {type(spec).__name__}; it is {_FORMS}")
    options: dict[str, Any] = {} if spec is True else dict(spec)
    try:
        if "url" in options:
            _check_names(options, ["url", "key"])
            proxy: LLMProxy | RemoteProxy = RemoteProxy(**options)
        else:
            _check_options(options, kind)
            defaults: dict[str, Any] = {"store": store, **_where(strategy), **_key(options, store, strategy)}
            if registry is not default_registry():  # which other processes have, too, where there are workers
                defaults["registry"] = registry
            options = {**defaults, **options}
            if options.get("host") in _EVERYWHERE and not options.get("public_url"):
                logger.warning(
                    "lightning.proxy_address_unknown host=%s: agents are led to this machine by its loopback address; "
                    "for runners of other machines give public_url, as in http://10.0.0.5:4748",
                    options["host"],
                )
            made = proxy = kind(**options)
            made.update_model_list(made.model_list)  # a wrong entry is known now
    except (ConfigError, RegistryError) as exc:
        raise ConfigError(f"llm_proxy: {exc}") from exc
    _check_keys(proxy, strategy)
    return proxy


def with_model(resources: NamedResources | None, proxy: "LLMProxy | RemoteProxy | None") -> NamedResources | None:
    """Return resources with a model for the agent: the first of the proxy's, unless they have one, or it has none."""
    if proxy is None or not proxy.models() or any(isinstance(each, LLM) for each in (resources or {}).values()):
        return resources
    return {**(resources or {}), MAIN_LLM: proxy.as_resource(model=proxy.models()[0])}


def is_remote(proxy: object) -> bool:
    """Whether a proxy runs by itself, somewhere else."""
    if proxy is None:
        return False
    from lightning_core.proxy import RemoteProxy  # late, as above

    return isinstance(proxy, RemoteProxy)


def leads(strategy: ExecutionStrategy) -> bool:
    """Whether the algorithm runs in this process, or only runners do."""
    return getattr(strategy, "role", None) != "runner"


def _where(strategy: ExecutionStrategy) -> dict[str, str]:
    """Say where to listen: where runners of other machines reach the store, they have to reach the proxy, too."""
    from lightning_core.store.http.loopback import is_loopback  # late, as above

    host = getattr(strategy, "server_host", None)
    return {} if host is None or is_loopback(host) or not leads(strategy) else {"host": host}


def _key(options: Mapping[str, Any], store: LightningStore, strategy: ExecutionStrategy) -> dict[str, str]:
    """Make a key where nobody gave one, and those that are made of it reach the runners."""
    if "key" in options or os.environ.get(KEY_VARIABLE):
        return {}
    serves = getattr(strategy, "serves", None)
    has_keys = isinstance(strategy, LocalStrategy) or (callable(serves) and serves(store))
    return {"key": secrets.token_urlsafe(32)} if has_keys else {}


def _check_keys(proxy: "LLMProxy | RemoteProxy", strategy: ExecutionStrategy) -> None:
    given = os.environ.get(KEY_VARIABLE)
    is_elsewhere = leads(strategy) and not isinstance(strategy, LocalStrategy)
    if proxy.key and given and proxy.key != given and is_elsewhere:
        raise ConfigError(
            f"llm_proxy has another key than the variable {KEY_VARIABLE}, which the store of the runners has; "
            "the keys of attempts are made of one, so leave it out"
        )


def _check_options(options: dict[str, Any], kind: type[Any]) -> None:
    """Check the options of a proxy that is to be made, and load what is named by a path.

    Raises:
        ConfigError: Names the option.
    """
    from lightning_core.proxy.option_types import check_options
    from lightning_core.proxy.steering import Settings

    former = options.pop("type", None)  # as agentlightning 0.3 has it; there is one class
    if former is not None and not str(former).endswith("LLMProxy"):
        raise ConfigError(f"type is {former!r}; leave it out, or give an instance of your class")
    known = [*inspect.signature(kind).parameters, *(each.name for each in dataclasses.fields(Settings))]
    told = [each for each in dict.fromkeys(known) if each not in _OF_PROGRAMS]
    _check_names(options, told, also=superseded_options(kind) | _OF_PROGRAMS)
    if isinstance(options.get("redact"), str):
        options["redact"] = load_object(options["redact"])
    check_options(options)
    model_list = options.get("model_list")
    if model_list is not None and (not isinstance(model_list, list | tuple) or not model_list):
        got = "empty" if isinstance(model_list, list | tuple) else f"a {type(model_list).__name__}"
        raise ConfigError(
            f"model_list is {got}; it is a list as LiteLLM has it: "
            "[{'model_name': ..., 'litellm_params': {'model': ..., 'api_base': ...}}]"
        )
    for index, entry in enumerate(model_list or ()):
        if not isinstance(entry, Mapping):
            raise ConfigError(f"model_list[{index}] is a {type(entry).__name__}; each is a mapping with a model_name")


_OF_PROGRAMS = frozenset({"store", "registry", "clock", "launch_mode", "settings"})
"""Options that a trainer gives by itself, or that nobody needs to know of."""


def _check_names(options: Mapping[str, Any], known: list[str], *, also: Container[str] = ()) -> None:
    for name in options:
        if name not in known and name not in also:
            raise ConfigError(f"no option {name!r}; it takes: {', '.join(known)}{did_you_mean(str(name), known)}")


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
    from lightning_core.proxy.remote import flush_calls  # late: it takes an HTTP client with it

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
