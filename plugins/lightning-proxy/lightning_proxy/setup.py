"""The proxy of a trainer's runs, from whatever says one."""

import dataclasses
import inspect
import logging
import os
import secrets
from collections.abc import Container, Mapping
from typing import Any

from lightning_http.loopback import is_loopback

from lightning_core.errors import ConfigError
from lightning_core.execution.local import LocalStrategy
from lightning_core.model_proxy import KEY_VARIABLE, ModelProxy
from lightning_core.registry import Registry, default_registry, did_you_mean, load_object
from lightning_core.store import LightningStore
from lightning_core.superseded import superseded_options
from lightning_core.trainer.proxies import leads
from lightning_proxy.option_types import check_options
from lightning_proxy.remote import RemoteProxy
from lightning_proxy.steering import Settings

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
        _check_names(options, ["url", "key"])
        return RemoteProxy(**options)
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
    made: ModelProxy = kind(**options)
    made.update_model_list(made.model_list)  # type: ignore[attr-defined]  # a wrong entry is known now
    return made


def _where(strategy: object) -> dict[str, str]:
    """Say where to listen: where runners of other machines reach the store, they have to reach the proxy, too."""
    host = getattr(strategy, "server_host", None)
    return {} if host is None or is_loopback(host) or not leads(strategy) else {"host": host}


def _key(options: Mapping[str, Any], store: LightningStore, strategy: object) -> dict[str, str]:
    """Make a key where nobody gave one, and those that are made of it reach the runners."""
    if "key" in options or os.environ.get(KEY_VARIABLE):
        return {}
    serves = getattr(strategy, "serves", None)
    has_keys = isinstance(strategy, LocalStrategy) or (callable(serves) and serves(store))
    return {"key": secrets.token_urlsafe(32)} if has_keys else {}


def _check_options(options: dict[str, Any], kind: type[Any]) -> None:
    """Check the options of a proxy that is to be made, and load what is named by a path.

    Raises:
        ConfigError: Names the option.
    """
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
