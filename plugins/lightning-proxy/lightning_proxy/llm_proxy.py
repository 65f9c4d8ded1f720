"""The model proxy, as programs use it."""

import asyncio
import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from lightning_http.web_pages import is_loopback, require_key
from pydantic import Field, NonNegativeInt, PositiveInt

from lightning_core.budget import Budget
from lightning_core.deprecated import deprecated
from lightning_core.errors import ConfigError, ProxyError
from lightning_core.execution.local import LocalStrategy, leads
from lightning_core.model_proxy import KEY_VARIABLE, ModelProxy
from lightning_core.registry import Registry, check_options, default_registry, load_object
from lightning_core.store import LightningStore
from lightning_core.store.clock import Clock, SystemClock
from lightning_core.store.threaded import LightningStoreThreaded
from lightning_proxy.admit import Drained
from lightning_proxy.models import ModelConfig, ModelOptions, Models, make_replicas, require_prices
from lightning_proxy.owner import Owner
from lightning_proxy.paths import OpenPaths
from lightning_proxy.remote import AddressedProxy, RemoteProxy, flush_calls
from lightning_proxy.running import RunningProxy
from lightning_proxy.service import ProxyService
from lightning_proxy.settings import AttemptLimits, Settings, Wait
from lightning_proxy.spans import Capture, Redact

Port = Annotated[int, Field(ge=0, le=65535)]
"""0 lets the system choose."""

logger = logging.getLogger(__name__)


class LLMProxy(AddressedProxy):
    """Stands between agents and models: every call is attributed to its attempt, recorded, and sent on.

        async with LLMProxy(store=store, model_list=[
            {"model_name": "small", "litellm_params": {"model": "hosted_vllm/small", "api_base": "http://gpu:8000/v1"}},
        ]) as proxy:
            await store.add_resources({"main_llm": proxy.as_resource()})

    It runs in a thread with an event loop of its own, so that agents that block theirs do not block model calls; with
    `launch_mode="asyncio"`, in the event loop that starts it. Its methods may be called from any thread and event loop.

    Args:
        port: Where to listen; None or 0 lets the system choose.
        model_list: Which names lead to which backends; see `ModelConfig`.
        store: Where calls are recorded. Needed unless `allow_unattributed` is set.
        host: The address to listen on. One that other machines can reach demands a key.
        num_retries: How often a call is tried again that was refused before it was answered.
        launch_mode: `thread` or `asyncio`; 0.3's `mp` is a thread, too: `agl serve proxy` runs in a process of its own.
        launcher_args: In place of `host`, `port` and `launch_mode`: an object that has them.
        key: What its controllers send, and what the keys of attempts are derived from: that of the store's server. None
            for the variable `AGL_KEY`, `""` for none.
        public_url: How agents reach it, where that is not `host` and `port`.
        allow_unattributed: Whether calls are served that belong to no attempt. They are not recorded.
        allow_paths: What agents may call besides the APIs that are recorded, below `/v1`: `audio/speech` (and what is
            below it), or `POST audio/speech`. Such calls are sent with the backend's key, and are not recorded or
            priced.
        attribution_header: A header whose value stands for an attempt: `ROLLOUT_ID/ATTEMPT_ID`.
        capture_content: Whether messages and tools are recorded.
        capture_tokens: Whether token ids are.
        redact: Is given `input`, `output`, `instructions`, `tools` or `schema`, and what is to be recorded; returns
            what is. A function, or its path.
        budget: A `Budget`, or its limits: `{"usd": 5.0, "calls": 10_000}`.
        models: Other names of models, and their parameters.
        attempt_limits: What one attempt may use.
        max_concurrent_calls: How many calls may be in flight at once; further ones wait for their turn.
        queue_seconds: How long a call waits for its turn.
        max_body_bytes: The largest body of a request, unpacked.
        workers: 0.3's `num_workers`; 1. For more than one process answers, see "More than one proxy" in docs/proxy.md.
        registry: Where backends are found; None for what is installed.
        clock: How long waits last; None for the machine's clock.

    Raises:
        ConfigError: When an option has a value that it does not take.
    """

    @deprecated(
        renamed={"num_workers": "workers"},
        without_effect={
            "litellm_config": "give each model its options in the model_list",
            "middlewares": "streams are real, and attribution is built in",
            "callbacks": "token ids and log-probabilities are always asked for",
        },
    )
    def __init__(
        self,
        port: Port | None = None,
        model_list: Sequence[ModelConfig | Mapping[str, Any]] | None = None,
        store: LightningStore | None = None,
        host: str | None = None,
        num_retries: NonNegativeInt = 2,
        launch_mode: Literal["thread", "asyncio", "mp"] = "thread",
        *,
        launcher_args: Any = None,
        key: str | None = None,
        public_url: str | None = None,
        allow_unattributed: bool = False,
        allow_paths: Sequence[str] = (),
        attribution_header: str | None = None,
        capture_content: bool = True,
        capture_tokens: bool = True,
        redact: Redact | str | None = None,
        budget: Budget | Mapping[str, Any] | None = None,
        models: Sequence[ModelOptions] = (),
        attempt_limits: AttemptLimits | None = None,
        max_concurrent_calls: PositiveInt = 4096,
        queue_seconds: Wait = 300.0,
        max_body_bytes: PositiveInt = 64 * 1024 * 1024,
        workers: PositiveInt = 1,
        registry: Registry | None = None,
        clock: Clock | None = None,
    ) -> None:
        if launcher_args is not None:
            host, port, launch_mode = launcher_args.host, launcher_args.port, launcher_args.launch_mode
        options: dict[str, Any] = {"allow_unattributed": allow_unattributed, "attribution_header": attribution_header}
        options |= {"allow_paths": allow_paths, "num_retries": num_retries, "models": models}
        options |= {"attempt_limits": attempt_limits, "max_concurrent_calls": max_concurrent_calls}
        options |= {"queue_seconds": queue_seconds, "max_body_bytes": max_body_bytes}
        plain = {"port": port, "host": host, "key": key, "public_url": public_url, "workers": workers}
        plain["launch_mode"] = launch_mode
        plain |= {"capture_content": capture_content, "capture_tokens": capture_tokens}
        check_options("LLMProxy", {**plain, **options}, LLMProxy)
        OpenPaths(allow_paths)
        host = host or "127.0.0.1"
        key = (os.environ.get(KEY_VARIABLE) if key is None else key) or None
        require_key(host, key, what="the proxy", give=f"key= or {KEY_VARIABLE}")
        if workers > 1:
            raise ConfigError(
                f"workers is {workers}; a proxy is one process. Where one is not enough, start several behind a load "
                "balancer: docs/proxy.md, 'More than one proxy'"
            )
        super().__init__(host, port or 0, public_url=public_url, key=key)
        self._in_thread = launch_mode != "asyncio"
        self._settings = Settings(**options)
        self._capture = Capture(
            capture_content, capture_tokens, load_object(redact) if isinstance(redact, str) else redact
        )
        self.budget = Budget.of(budget)
        self._registry = default_registry() if registry is None else registry
        self._clock: Clock = SystemClock() if clock is None else clock
        self.store = store
        self.model_list: list[Mapping[str, Any]] = [dict(entry) for entry in model_list or ()]
        named = Models(models)
        if self.model_list:  # one that comes later may have other names
            named.check(self.models())
        self._weight_version: str | None = None
        self._running: RunningProxy | None = None
        self._changing = asyncio.Lock()

    @classmethod
    def from_spec(cls, spec: object, *, store: LightningStore, strategy: object) -> ModelProxy:
        """See `ModelProxy.from_spec`. The URL of a proxy makes a `RemoteProxy`."""
        options: dict[str, Any] = dict(spec) if isinstance(spec, Mapping) else {}
        if isinstance(spec, str) or "url" in options:
            return RemoteProxy.from_spec(spec, store=store, strategy=strategy)
        cls._check(options)
        defaults = {"store": store, **_where(strategy), **_key(options, store, strategy)}
        options = {**defaults, **options}
        if options.get("host") in ("0.0.0.0", "::") and not options.get("public_url"):
            logger.warning(
                "lightning.proxy_address_unknown host=%s: agents are led to this machine by its loopback address; "
                "for runners of other machines give public_url, as in http://10.0.0.5:4748",
                options["host"],
            )
        made = cls(**options)
        made.update_model_list(made.model_list)  # a wrong entry is known now
        return made

    @classmethod
    def _check(cls, options: dict[str, Any]) -> None:
        former = options.pop("type", None)  # as agentlightning 0.3 has it; there is one class
        if former is not None and not str(former).endswith("LLMProxy"):
            raise ConfigError(f"type is {former!r}; leave it out, or give an instance of your class")
        check_options("llm_proxy", options, cls)
        if "model_list" in options and not options["model_list"]:
            raise ConfigError(
                "model_list is empty; it is a list as LiteLLM has it: "
                "[{'model_name': ..., 'litellm_params': {'model': ..., 'api_base': ...}}]"
            )

    flush_calls = staticmethod(flush_calls)

    # Where it is

    def is_running(self) -> bool:
        """Whether calls are served."""
        return self._running is not None

    def models(self) -> list[str]:
        """Return what agents may ask for."""
        return list(dict.fromkeys(str(entry.get("model_name")) for entry in self.model_list))

    def set_store(self, store: LightningStore) -> None:
        """Record calls in another store from now on; agents then need its attempts' keys.

        Raises:
            ProxyError: When it has calls that the present store does not have yet.
        """
        if self._running is not None and store is not self.store:
            other = self._reachable(store)
            self._running.tell(lambda proxy: proxy.set_store(other))
        self.store = store

    # From start to stop

    async def start(self) -> None:
        """Listen; return when calls are served. Does nothing when it runs.

        Raises:
            ConfigError: When the port cannot be had, the model list is wrong, or there is no store.
        """
        async with self._changing:
            if self._running is None:
                await self._start()

    async def _start(self) -> None:
        if self.store is None and not self._settings.allow_unattributed:
            raise ConfigError("the proxy has no store to record calls in; give it store=, or allow_unattributed=True")
        store = None if self.store is None else self._reachable(self.store)
        if store is not None:
            await store.statistics()  # one that cannot be reached is known now, and its run from now on
        running = RunningProxy(lambda: self._make(store), in_thread=self._in_thread)
        self.port = await running.start(self.host, self.port)
        self._running = running

    def _reachable(self, store: LightningStore) -> LightningStore:
        if self._in_thread and not store.capabilities.get("thread_safe"):
            return LightningStoreThreaded(store)
        return store

    async def stop(self) -> None:
        """Let calls end, bring what they recorded to the store, and stop. Does nothing when it does not run."""
        async with self._changing:
            running, self._running = self._running, None
            if running is not None:
                await running.stop()

    async def restart(self, *, _port: int | None = None) -> None:
        """Stop and start again, on the same port."""
        await self.stop()
        if _port is not None:
            self.port = _port
        await self.start()

    def _make(self, store: LightningStore | None) -> ProxyService:
        """Make what serves calls, in the event loop that it belongs to."""
        service = ProxyService(
            store,
            keys=self._keys,
            settings=self._settings,
            capture=self._capture,
            budget=self.budget,
            registry=self._registry,
            clock=self._clock,
        )
        service.replicas.replace(make_replicas(self.model_list, self._registry))
        service.sender.weight_version = self._weight_version
        return service

    def require_prices(self) -> None:
        """See `ModelProxy.require_prices`."""
        require_prices(make_replicas(self.model_list, self._registry), self._registry)

    # While it runs

    def update_model_list(self, model_list: Sequence[ModelConfig | Mapping[str, Any]]) -> None:
        """Replace the model list; takes effect with the next call. Calls under way end where they are.

        Raises:
            ConfigError: When an entry is wrong; then nothing changes.
            RegistryError: When a backend cannot be had; then nothing changes.
        """
        entries: list[Mapping[str, Any]] = [dict(entry) for entry in model_list]
        if self._running is None:
            make_replicas(entries, self._registry)
        else:
            self._running.tell(lambda proxy: proxy.update_model_list(entries))
        self.model_list = entries

    async def pause(self, seconds: float | None = None) -> None:
        """Let new calls wait, for new weights. Those under way go on: see `drain`. Idempotent.

        Args:
            seconds: How long a call that comes from now on waits for `resume` until it is refused; None for a minute.
        """
        self._require_running().tell(lambda proxy: proxy.limiter.pause(seconds))

    async def resume(self) -> None:
        """Let calls in again."""
        self._require_running().tell(lambda proxy: proxy.limiter.resume())

    async def drain(self, timeout: float | None = None) -> Drained:
        """Wait until no call is under way, and cut off those that are after so many seconds; `pause` first.

        Returns:
            How many calls ended, and how many were cut off. The agents of the latter get an error: try again.
        """
        return await self._require_running().ask(lambda proxy: proxy.limiter.drain(timeout))

    def set_weight_version(self, version: str | int | None) -> None:
        """Record with each call from now on which weights it was made with."""
        weight_version = self._weight_version = None if version is None else str(version)
        if self._running is not None:
            self._running.tell(lambda proxy: setattr(proxy.sender, "weight_version", weight_version))

    async def flush(self, rollout_id: str, attempt_id: str, *, end: bool = True) -> None:
        """Return when the store has all calls of an attempt.

        Args:
            rollout_id: The rollout.
            attempt_id: The attempt.
            end: Whether the attempt has ended: what is still under way is cut off after a moment, and no further call
                is let through.

        Raises:
            StoreUnavailable: When the store does not take them in time. They go to it when it is back.
            CallsLost: When the store cannot keep one of them.
        """
        await self._require_running().ask(lambda proxy: proxy.flush(Owner(None, rollout_id, attempt_id), end))

    async def status(self) -> dict[str, Any]:
        """Return how it stands: calls, tokens, money, what is under way, what is not stored yet, and the replicas."""
        return self._require_running().tell(lambda proxy: proxy.status())

    def _require_running(self) -> RunningProxy:
        if self._running is None:
            raise ProxyError("the proxy does not run; start it first")
        return self._running


def _where(strategy: object) -> dict[str, str]:
    """Say where to listen: where runners of other machines reach the store, they have to reach the proxy, too."""
    host = getattr(strategy, "server_host", None)
    return {} if host is None or is_loopback(host) or not leads(strategy) else {"host": host}


def _key(options: Mapping[str, Any], store: LightningStore, strategy: object) -> dict[str, str]:
    """Make a key where none was given, and those that are made of it reach the runners."""
    if "key" in options or os.environ.get(KEY_VARIABLE):
        return {}
    serves = getattr(strategy, "serves", None)
    has_keys = isinstance(strategy, LocalStrategy) or (callable(serves) and serves(store))
    return {"key": secrets.token_urlsafe(32)} if has_keys else {}
