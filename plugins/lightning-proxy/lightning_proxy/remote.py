"""A proxy by its address: what an agent is given to call it, and one that runs by itself, as `agl serve proxy` does."""

import asyncio
import copy
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

import aiohttp
from lightning_http.auth import Keys
from lightning_http.connection import Sessions
from lightning_http.web_pages import url_of

from lightning_core.budget import Budget
from lightning_core.errors import ConfigError, Fault, ProxyError, StoreUnavailable
from lightning_core.model_proxy import KEY_VARIABLE, ModelProxy
from lightning_core.registry import check_options
from lightning_core.store import LightningStore
from lightning_core.types import LLM, AttemptedRollout, ProxyLLM, Resource
from lightning_proxy.jsons import dump, parse_object
from lightning_proxy.routes import FLUSH_PATH, STATUS_PATH


class AddressedProxy(ModelProxy):
    """The part of a model proxy that knows its address, and its run.

    Args:
        host: What it listens on.
        port: Where; 0 as long as the system is to choose.
        public_url: How agents reach it, where that is not `host` and `port`.
        key: Its own; None where it needs none.
    """

    def __init__(self, host: str, port: int, *, public_url: str | None, key: str | None) -> None:
        self.host = host
        self.key = key
        """Its own; None where it needs none."""
        self.store: LightningStore | None = None
        self.port = port
        """Where it listens; 0 before the system has chosen."""
        self._public_url = None if public_url is None else public_url.rstrip("/").removesuffix("/v1")
        self._keys = Keys(key)

    @property
    def url(self) -> str:
        """Where agents find it, such as `http://127.0.0.1:4748`; known once it is started.

        Raises:
            ProxyError: When the system is to choose the port, and has not yet.
        """
        if self._public_url is not None:
            return self._public_url
        if self.port == 0:
            raise ProxyError("the proxy's port is not chosen yet; start the proxy first")
        return url_of(self.host, self.port)

    def get_store(self) -> LightningStore | None:
        """Return the store in which calls are recorded."""
        return self.store

    def attempt_key(self, rollout_id: str, attempt_id: str, *, expires: bool = True) -> str | None:
        """Return the key that opens model calls of one attempt; None where no keys are needed.

        It is the same as that which the store's server gives with the claim: good for a day, or unless it expires, for
        as long as the attempt lives.
        """
        if not self._keys.required or self.store is None or self.store.run_id is None:
            return None
        return self._keys.mint(self.store.run_id, rollout_id, attempt_id, time.time(), expires=expires)

    def as_resource(
        self,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        model: str | None = None,
        sampling_parameters: Mapping[str, Any] | None = None,
    ) -> LLM:
        """Return what an agent is given to call a model: a `ProxyLLM`, or with both ids the `LLM` of that attempt.

        Where keys are needed, the latter has the attempt's; the former has none, for one key cannot be all attempts'.

        Raises:
            ValueError: When only one of the ids is given, or when it is not clear which model is meant.
        """
        models = self.models()
        if model is None:
            if len(models) != 1:
                raise ValueError(f"say which model: the proxy has {', '.join(models) or 'none'}")
            model = models[0]
        parameters = copy.deepcopy(dict(sampling_parameters or {}))
        general = ProxyLLM(endpoint=f"{self.url}/v1", model=model, sampling_parameters=parameters)
        if rollout_id is None and attempt_id is None:
            return general
        return LLM(
            endpoint=general.get_base_url(rollout_id, attempt_id),
            model=model,
            api_key=self.attempt_key(rollout_id or "", attempt_id or ""),
            sampling_parameters=parameters,
        )


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
        base = proxy.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id).removesuffix("/v1")
        given, data = proxy.api_key if key is None else key, dump({"end": end})
        try:
            status, answered = await _request(
                _sessions, "POST", base + FLUSH_PATH, given, seconds=_FLUSH_SECONDS, data=data
            )
        except _OUT_OF_REACH as exc:
            raise Fault(f"the model proxy at {proxy.endpoint} is out of reach: {exc or type(exc).__name__}") from exc
        if status >= 300:
            kind = StoreUnavailable if status == 503 else Fault
            reason = _error_of(answered) or f"it answered {status}"
            raise kind(f"the model proxy at {proxy.endpoint} has not stored all calls of the attempt: {reason}")
    return bool(proxies)


_OUT_OF_REACH = (aiohttp.ClientError, OSError, TimeoutError)


async def _request(
    sessions: Sessions, method: str, url: str, key: str | None, *, seconds: float, data: bytes | None = None
) -> tuple[int, dict[str, Any] | None]:
    """Return the status of an answer, and its JSON object; None where it has none."""
    session = await sessions.current()
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with asyncio.timeout(seconds):
        async with session.request(method, url, data=data, headers=headers) as response:
            return response.status, parse_object(await response.read())


def _error_of(answered: dict[str, Any] | None) -> str | None:
    error = (answered or {}).get("error")
    message = error.get("message") if isinstance(error, dict) else error
    return None if message is None else str(message)


_SECONDS = 30.0
"""How long an answer may take."""


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
    def from_spec(cls, spec: object, *, store: LightningStore, strategy: object) -> ModelProxy:
        """See `ModelProxy.from_spec`: the URL, or that and the key by name."""
        options: dict[str, Any] = dict(spec) if isinstance(spec, Mapping) else {"url": spec}
        check_options("llm_proxy", options, cls)
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
        entries = listed.get("data")
        self._models = [str(each.get("id")) for each in entries if isinstance(each, dict)] if entries else []
        self._is_running = True

    async def stop(self) -> None:
        """Let go of the connections. The proxy goes on."""
        self._is_running = False
        await self._sessions.aclose()

    async def status(self) -> dict[str, Any]:
        """Return how it stands; see `LLMProxy.status`."""
        return await self._ask(STATUS_PATH)

    async def _ask(self, path: str) -> dict[str, Any]:
        """Ask it for something.

        Raises:
            ProxyError: When it cannot be reached, or refuses.
        """
        try:
            status, answered = await _request(self._sessions, "GET", self.url + path, self.key, seconds=_SECONDS)
        except _OUT_OF_REACH as exc:
            raise ProxyError(f"the model proxy at {self.url} is out of reach: {exc or type(exc).__name__}") from exc
        if status >= 300 or answered is None:
            reason = _error_of(answered) or f"it answered {status}, and is perhaps no proxy"
            raise ProxyError(f"the model proxy at {self.url} refused {path}: {reason}")
        return answered
