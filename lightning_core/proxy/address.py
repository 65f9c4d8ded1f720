"""Where agents find a proxy, and with which key."""

import copy
import time
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_core.errors import ProxyError
from lightning_core.store.http.auth import Keys
from lightning_core.types import LLM, ProxyLLM


class Address:
    """The place of one proxy.

    Args:
        host: What it listens on.
        port: Where; 0 as long as the system is to choose.
        public_url: How agents reach it, where that is not `host` and `port`.
        keys: Makes the keys of attempts.
    """

    def __init__(self, host: str, port: int, *, public_url: str | None, keys: Keys) -> None:
        self.host = host
        self.port = port
        self._public_url = None if public_url is None else public_url.rstrip("/").removesuffix("/v1")
        self._keys = keys

    @property
    def url(self) -> str:
        """What agents ask, such as `http://127.0.0.1:4748`.

        Raises:
            ProxyError: When the system is to choose the port, and has not yet.
        """
        if self._public_url is not None:
            return self._public_url
        if self.port == 0:
            raise ProxyError("the proxy's port is not chosen yet; start the proxy first")
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def attempt_key(self, run_id: str | None, rollout_id: str, attempt_id: str, *, expires: bool = True) -> str | None:
        """Return the key of an attempt; None where no keys are needed, or there is no run that it could be of."""
        if not self._keys.required or run_id is None:
            return None
        return self._keys.mint(run_id, rollout_id, attempt_id, time.time(), expires=expires)

    def resource(
        self,
        models: Sequence[str],
        run_id: str | None,
        *,
        rollout_id: str | None,
        attempt_id: str | None,
        model: str | None,
        sampling_parameters: Mapping[str, Any] | None,
    ) -> LLM:
        """Return what an agent is given: a `ProxyLLM`, or with both ids the `LLM` of that attempt.

        Raises:
            ValueError: When only one of the ids is given, or when it is not clear which model is meant.
        """
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
            api_key=self.attempt_key(run_id, rollout_id or "", attempt_id or ""),
            sampling_parameters=parameters,
        )
