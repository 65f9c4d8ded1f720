"""The proxy of a trainer's runs, from whatever says one."""

import logging
import os
import secrets
from collections.abc import Mapping
from typing import Any

from lightning_http.loopback import is_loopback

from lightning_core.errors import ConfigError
from lightning_core.execution.local import LocalStrategy
from lightning_core.model_proxy import KEY_VARIABLE, ModelProxy
from lightning_core.registry import Registry, check_options, default_registry
from lightning_core.store import LightningStore
from lightning_core.trainer.proxies import leads
from lightning_proxy.control import Settings
from lightning_proxy.remote import RemoteProxy

logger = logging.getLogger(__name__)

_EVERYWHERE = ("0.0.0.0", "::")


def proxy_from_spec(
    kind: type[Any], spec: object, *, store: LightningStore, strategy: object, registry: Registry
) -> ModelProxy:
    """See `ModelProxy.from_spec`."""
    if isinstance(spec, str):
        spec = {"url": spec}
    options: dict[str, Any] = dict(spec) if isinstance(spec, Mapping) else {}
    if "url" in options:
        check_options("llm_proxy", options, RemoteProxy)
        return RemoteProxy(**options)
    _check(options, kind)
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
    made: ModelProxy = kind(**options)
    made.update_model_list(made.model_list)  # type: ignore[attr-defined]  # a wrong entry is known now
    return made


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


def _check(options: dict[str, Any], kind: type[Any]) -> None:
    """Check the options of a proxy that is to be made.

    Raises:
        ConfigError: Names the option.
    """
    former = options.pop("type", None)  # as agentlightning 0.3 has it; there is one class
    if former is not None and not str(former).endswith("LLMProxy"):
        raise ConfigError(f"type is {former!r}; leave it out, or give an instance of your class")
    check_options("llm_proxy", options, kind, Settings)
    if "model_list" in options and not options["model_list"]:
        raise ConfigError(
            "model_list is empty; it is a list as LiteLLM has it: "
            "[{'model_name': ..., 'litellm_params': {'model': ..., 'api_base': ...}}]"
        )
