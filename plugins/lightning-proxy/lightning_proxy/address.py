"""Where a proxy is found, and what an agent is given to call a model through it."""

import copy
import time
from collections.abc import Mapping
from typing import Any

from lightning_http.auth import Keys

from lightning_core.errors import ProxyError
from lightning_core.model_proxy import ModelProxy
from lightning_core.store import LightningStore
from lightning_core.types import LLM, ProxyLLM


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
        self._port = port
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
        if self._port == 0:
            raise ProxyError("the proxy's port is not chosen yet; start the proxy first")
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self._port}"

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
