"""A proxy that runs by itself, as `agl proxy` does, named by its URL."""

import asyncio
import os
from collections.abc import Iterable, Mapping
from typing import Any

import aiohttp
from lightning_http.connection import Sessions

from lightning_core.budget import Budget
from lightning_core.errors import ConfigError, Fault, ProxyError, StoreUnavailable
from lightning_core.model_proxy import KEY_VARIABLE, ModelProxy
from lightning_core.registry import Registry
from lightning_core.store import LightningStore
from lightning_core.types import AttemptedRollout, ProxyLLM, Resource
from lightning_proxy.address import AddressedProxy
from lightning_proxy.jsons import dump, parse_object
from lightning_proxy.routes import FLUSH_PATH

_FLUSH_SECONDS = 60.0
_sessions = Sessions()


async def flush_calls(
    resources: Iterable[Resource], rollout: AttemptedRollout, *, key: str | None = None, end: bool = True
) -> bool:
    """Return when the store has all model calls that an attempt made through proxies, wherever these run.

    Args:
        resources: The rollout's; those that are a `ProxyLLM` say where the proxies are.
        rollout: The rollout with the attempt.
        key: The attempt's, or a runner's; None where no keys are needed.
        end: Whether the attempt has ended, so that no further call of it is let through.

    Returns:
        Whether there is a proxy at all: then the store may have spans that no tracer has seen.

    Raises:
        Fault: When a proxy is out of reach, or could not bring its spans to the store: what is known of the attempt is
            not all of it.
    """
    proxies = {resource.endpoint: resource for resource in resources if isinstance(resource, ProxyLLM)}
    for proxy in proxies.values():
        await _flush(proxy, rollout, proxy.api_key if key is None else key, end=end)
    return bool(proxies)


async def _flush(proxy: ProxyLLM, rollout: AttemptedRollout, key: str | None, *, end: bool) -> None:
    base = proxy.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id).removesuffix("/v1")
    session = await _sessions.current()
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    try:
        async with asyncio.timeout(_FLUSH_SECONDS):
            async with session.post(base + FLUSH_PATH, data=dump({"end": end}), headers=headers) as response:
                if response.status < 300:
                    return
                told = (parse_object(await response.read()) or {}).get("error")
    except (aiohttp.ClientError, OSError, TimeoutError) as exc:
        raise Fault(f"the model proxy at {proxy.endpoint} is out of reach: {exc or type(exc).__name__}") from exc
    if isinstance(told, dict):
        told = told.get("message")
    said = str(told or f"it answered {response.status}")
    kind = StoreUnavailable if response.status == 503 else Fault
    raise kind(f"the model proxy at {proxy.endpoint} has not stored all calls of the attempt: {said}")


_SECONDS = 30.0
"""How long an answer may take."""

_WAIT_SECONDS = 20
"""How long an answer that is waited for is asked to wait: connections that are silent for longer are cut by some."""


class RemoteProxy(AddressedProxy):
    """Stands for a proxy of another process, as far as a run needs it: it is neither started nor stopped from here.

    It records calls in the store that it was started with; that has to be the run's, too. It counts its own budget.

    Args:
        url: Where it is, such as `http://10.0.0.5:4748`.
        key: The key that it was started with; None for the variable `AGL_KEY`, `""` for none.

    Raises:
        ConfigError: When the URL is none.
    """

    is_remote = True
    flush_calls = staticmethod(flush_calls)
    budget: Budget | None = None
    """None: what there is of one is counted there."""

    def __init__(self, url: str, *, key: str | None = None) -> None:
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise ConfigError(f"the URL of a proxy is {url!r}; it is as in http://10.0.0.5:4748")
        super().__init__("", 0, public_url=url, key=(os.environ.get(KEY_VARIABLE) if key is None else key) or None)
        self._models: list[str] = []
        self._is_running = False
        self._sessions = Sessions()

    @classmethod
    def from_spec(cls, spec: object, *, store: LightningStore, strategy: object, registry: Registry) -> ModelProxy:
        """See `ModelProxy.from_spec`: the URL, or that and the key by name."""
        options: dict[str, Any] = dict(spec) if isinstance(spec, Mapping) else {"url": spec}
        return cls(**options)

    def is_running(self) -> bool:
        """Whether it was reached by `start`."""
        return self._is_running

    def models(self) -> list[str]:
        """Return what agents may ask for, as it was at the start."""
        return list(self._models)

    def set_store(self, store: LightningStore) -> None:
        """Say which run's attempts call it."""
        self.store = store

    async def start(self) -> None:
        """Ask it for its models.

        Raises:
            ConfigError: When nothing answers there, or it wants another key.
        """
        try:
            listed = await self._ask("/v1/models")
        except ProxyError as exc:
            raise ConfigError(str(exc)) from exc
        found = listed.get("data")
        self._models = [str(each.get("id")) for each in found if isinstance(each, dict)] if found else []
        self._is_running = True

    async def stop(self) -> None:
        """Let go of the connections. The proxy goes on."""
        self._is_running = False
        await self._sessions.aclose()

    async def status(self) -> dict[str, Any]:
        """Return how it stands; see `LLMProxy.status`."""
        return await self._ask("/control/status")

    async def budget_beyond(self, refusals: int) -> dict[str, Any] | None:
        """Return how its budget stands when it has refused more calls than these, or after a while; None for none.

        Raises:
            ProxyError: When it cannot be reached, or refuses.
        """
        path = f"/control/budget?refusals={refusals}&seconds={_WAIT_SECONDS}"
        budget: dict[str, Any] | None = (await self._ask(path, seconds=_WAIT_SECONDS + _SECONDS)).get("budget")
        return budget

    async def _ask(self, path: str, *, seconds: float = _SECONDS) -> dict[str, Any]:
        """Ask it for something.

        Raises:
            ProxyError: When it cannot be reached, or refuses.
        """
        session = await self._sessions.current()
        headers = {} if self.key is None else {"authorization": f"Bearer {self.key}"}
        try:
            async with asyncio.timeout(seconds):
                async with session.get(self.url + path, headers=headers) as response:
                    answered = parse_object(await response.read())
                    status = response.status
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            raise ProxyError(f"the model proxy at {self.url} is out of reach: {exc or type(exc).__name__}") from exc
        if status >= 300 or answered is None:
            error = (answered or {}).get("error")
            said = error.get("message") if isinstance(error, dict) else f"it answered {status}, and is perhaps no proxy"
            raise ProxyError(f"the model proxy at {self.url} refused {path.partition('?')[0]}: {said}")
        return answered
