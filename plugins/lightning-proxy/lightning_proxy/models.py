"""The models: the list in LiteLLM's form, which leads from names to backends, and the option `models`."""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NotRequired, Required

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from lightning_core.errors import ConfigError, InvalidComponent
from lightning_core.registry import Registry, did_you_mean
from lightning_proxy.answer import mapping
from lightning_proxy.apis import DIALECTS
from lightning_proxy.apis.chat import RETURN_TOKEN_IDS
from lightning_proxy.backend import VARIABLE, Backend, TokenCounts
from lightning_proxy.openai_backend import BASE_VARIABLE
from lightning_proxy.replicas import Replica

_OPENAI_PROVIDERS = frozenset({"openai", "hosted_vllm", "vllm", "sglang", "text-completion-openai", "custom_openai"})
"""LiteLLM's names of providers that speak OpenAI's API."""

_OWN_SERVERS = frozenset({"hosted_vllm", "vllm", "sglang"})
"""Those of them that are servers of one's own."""

_VLLM = frozenset({"hosted_vllm", "vllm"})
"""Those of them that answer with token ids."""

_OTHER_PROVIDERS = frozenset(
    {
        *("ai21", "aleph_alpha", "anthropic", "azure", "azure_ai", "azure_text", "bedrock", "bedrock_converse"),
        *("clarifai", "cloudflare", "cohere", "cohere_chat", "dashscope", "deepinfra", "deepseek", "fireworks_ai"),
        *("gemini", "github", "github_copilot", "groq", "huggingface", "jina_ai", "llamafile", "lm_studio", "mistral"),
        *("moonshot", "nlp_cloud", "nvidia_nim", "oci", "ollama", "ollama_chat", "oobabooga", "openrouter", "palm"),
        *("perplexity", "petals", "replicate", "sagemaker", "sagemaker_chat", "together_ai", "triton"),
        *("vertex_ai", "vertex_ai_beta", "voyage", "watsonx", "watsonx_text", "xai", "xinference"),
    }
)
"""LiteLLM's names of others, but for those under which models are published, such as `databricks`: before a model that
an endpoint serves, that is a part of the model's name."""

_PRICES = {
    "input_cost_per_token": "input_price",
    "output_cost_per_token": "output_price",
    "cache_read_input_token_cost": "cached_price",
    "cache_creation_input_token_cost": "written_price",
    "cache_creation_input_token_cost_above_1hr": "written_for_an_hour_price",
}
"""LiteLLM's names of prices, and a replica's."""

_PRICE_TABLE = "litellm"
"""The backend that knows the prices of providers, where it is installed."""

_SHORTEST_KEY = 8
"""What is shorter stands for none, such as `EMPTY`, and may be a part of any text."""

_OWN_PARAMS = frozenset({"model", *_PRICES})
"""What is not the backend's."""


class ModelConfig(TypedDict, total=False):
    """One entry of the model list: several of one `model_name` are replicas."""

    model_name: Required[str]
    """What agents ask for."""
    litellm_params: Required[dict[str, Any]]
    """`model` (with LiteLLM's prefix of the provider, or without), and options of the backend: `api_base`, ..."""
    backend: NotRequired[object]
    """The backend: an installed name, an instance, or whatever else the registry takes. Without it, that of the
    provider."""
    model_info: NotRequired[dict[str, Any]]
    """Prices, where they do not stand in `litellm_params`."""


def make_replicas(
    model_list: Sequence[Mapping[str, Any]], registry: Registry, known: Sequence[Replica] = ()
) -> list[Replica]:
    """Make the replicas of a model list.

    Args:
        model_list: The entries.
        registry: Where backends are found by name.
        known: Those that there are: one whose entry has not changed is kept, with its connections.

    Raises:
        ConfigError: Names the entry and what is wrong with it.
        RegistryError: When a backend cannot be had.
    """
    left = list(known)
    replicas = []
    for number, entry in enumerate(model_list):
        same = next((replica for replica in left if replica.spec == entry), None)
        if same is not None:
            left.remove(same)
            replicas.append(same)
        else:
            replicas.append(_make(number, entry, registry))
    return replicas


def _make(number: int, entry: Mapping[str, Any], registry: Registry) -> Replica:
    name = entry.get("model_name") if isinstance(entry, Mapping) else None
    if not isinstance(name, str) or not name:
        raise ConfigError(f"model_list[{number}] has no model_name; it is {{'model_name': ..., 'litellm_params': ...}}")
    where = f"model_list[{number}] ({name})"
    takes = ModelConfig.__annotations__
    if unknown := sorted(set(entry) - set(takes)):
        raise ConfigError(f"{where} has no field {unknown[0]!r}; it has: {', '.join(takes)}")
    params = entry.get("litellm_params", {})
    if not isinstance(params, Mapping):
        raise ConfigError(f"{where}: litellm_params is of type {type(params).__name__}, not a mapping")
    model_name = str(params.get("model") or name)
    if "*" in name + model_name:
        raise ConfigError(
            f"{where}: '*' stands for no other name; give each model an entry, and one of them more names with "
            "models=[{'model_name': ..., 'aliases': ['*']}]"
        )
    given = entry.get("backend")
    prefix, model = _provider(model_name)
    options = {option: value for option, value in params.items() if option not in _OWN_PARAMS}
    is_openai = given is None and (prefix in _OPENAI_PROVIDERS or (prefix is None and "api_base" in options))
    has_base = "api_base" in options or bool(os.environ.get(BASE_VARIABLE))
    if is_openai and prefix in _OWN_SERVERS and not has_base:
        raise ConfigError(
            f"{where}: {model_name!r} has no api_base, and would go to OpenAI; give the URL of your server, as "
            f"http://127.0.0.1:8000/v1, or set {BASE_VARIABLE}"
        )
    if is_openai and prefix in _VLLM:
        options.setdefault(RETURN_TOKEN_IDS, True)
    spec = given or ("openai" if is_openai else "litellm")
    if spec == "litellm":  # it needs the provider's prefix
        options = {"model": model_name, **options}
    if isinstance(spec, str):
        spec = {"name": spec}
    if isinstance(spec, Mapping):
        spec = {**spec, **options}
    try:
        backend = registry.build("backends", spec, expected=Backend)
    except (ConfigError, InvalidComponent) as exc:
        is_unknown = is_openai and "has no option" in str(exc)
        hint = " (what else LiteLLM takes is for `backend: litellm`, in its option `params`)" if is_unknown else ""
        raise ConfigError(f"{where}: {exc}{hint}") from exc
    return Replica(
        model_name=name,
        model=model if prefix in _OPENAI_PROVIDERS and given != "litellm" else model_name,
        backend=backend,
        # OpenAI's own API: that of another server, which api_base names, has prices of its own.
        priced_as=model_name if is_openai and prefix == "openai" and not has_base else None,
        is_owned=not isinstance(given, Backend),
        keys=_keys(spec if isinstance(spec, Mapping) else options),
        spec={field: dict(value) if isinstance(value, Mapping) else value for field, value in entry.items()},
        **_prices(where, {**entry.get("model_info", {}), **params}),
    )


def _keys(options: Mapping[str, Any]) -> list[str]:
    """Return the values of a backend's options that no agent is told."""
    key, headers = options.get("api_key"), options.get("headers")
    if key is None and options.get("api_base") is None:
        key = f"{VARIABLE}OPENAI_API_KEY"
    given = [each for each in (key, *(headers or {}).values()) if isinstance(each, str)]
    values = [os.environ.get(each.removeprefix(VARIABLE), "") if each.startswith(VARIABLE) else each for each in given]
    keys = [value.removeprefix("Bearer ") for value in values]  # providers repeat the key alone
    return [key for key in keys if len(key) >= _SHORTEST_KEY]


def _prices(where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    for name in given:
        if "cost_per" in name and name not in _PRICES:
            raise ConfigError(
                f"{where}: {name} is not counted here; prices are {', '.join(_PRICES)}. Without any of them, "
                "lightning-litellm counts by its own table, tiers included"
            )
    return {ours: _price(where, name, given.get(name)) for name, ours in _PRICES.items()}


def require_prices(replicas: Sequence[Replica], registry: Registry) -> None:
    """Check that the price of each model is known. LiteLLM's table is asked where an entry for OpenAI gives none.

    Raises:
        ConfigError: Names the first one whose price is not.
    """
    has_table = any(component.name == _PRICE_TABLE for component in registry.components("backends"))
    for replica in replicas:
        if replica.cost(TokenCounts(1, 1)) is None and replica.priced_as is not None and has_table:
            spec = {"name": _PRICE_TABLE, "model": replica.priced_as}
            replica.price_table = registry.build("backends", spec, expected=Backend)
        if replica.cost(TokenCounts(1, 1)) is None:
            raise ConfigError(
                f"model_list ({replica.model_name}): {replica.model!r} has no known price, and usd is limited: give "
                "input_cost_per_token and output_cost_per_token in its litellm_params (0 for a server of your own), or "
                "install lightning-litellm, which knows the prices of providers"
            )


def _provider(model: str) -> tuple[str | None, str]:
    """Split LiteLLM's prefix off; a slash after anything else is part of the name."""
    prefix, slash, rest = model.partition("/")
    return (prefix, rest) if slash and prefix in _OPENAI_PROVIDERS | _OTHER_PROVIDERS else (None, model)


def _price(where: str, name: str, price: Any) -> float | None:
    if price is None:
        return None
    if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < float("inf"):
        raise ConfigError(f"{where}: {name} is {price!r}; it is a price in US dollars, 0 or more")
    return float(price)


# The option `models`: other names of a model, and its sampling parameters


@with_config(ConfigDict(extra="forbid"))
class SamplingParams(TypedDict, total=False):
    """By the names of the chat API, and vLLM's."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    max_tokens: int
    stop: str | list[str]
    seed: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    reasoning_effort: str
    chat_template_kwargs: dict[str, Any]


@with_config(ConfigDict(extra="forbid"))
class ModelOptions(TypedDict):
    """One entry of `models`."""

    model_name: Required[str]
    """A name of the model list."""
    aliases: NotRequired[list[str]]
    """Other names that lead there. `*` stands for any text: `*` alone takes every name that there is not."""
    default_params: NotRequired[SamplingParams]
    """What is sent where the agent does not say it."""
    forced_params: NotRequired[SamplingParams]
    """What is sent whatever the agent says."""


class Models:
    """Says which model a call is for, and what is sent to it.

    Args:
        options: The entries.

    Raises:
        ConfigError: When two entries say the same name.
    """

    def __init__(self, options: Sequence[ModelOptions] = ()) -> None:
        self._options: dict[str, ModelOptions] = {}
        self._aliases: dict[str, str] = {}
        for entry in options:
            name = entry["model_name"]
            if name in self._options:
                raise ConfigError(f"models has two entries of {name!r}; put them together")
            self._options[name] = entry
            for alias in entry.get("aliases", ()):
                other = self._aliases.setdefault(alias, name)
                if other != name:
                    raise ConfigError(f"models has {alias!r} as an alias of {other!r} and of {name!r}; which is it?")
        self._patterns = [
            (re.compile(re.escape(alias).replace(r"\*", ".*"), re.DOTALL), name)
            for alias, name in self._aliases.items()
            if "*" in alias
        ]

    def check(self, listed: Collection[str]) -> None:
        """Check the entries against the names of a model list.

        Raises:
            ConfigError: Names what the list does not have, or the alias that it has.
        """
        for name, entry in self._options.items():
            if name not in listed:
                raise ConfigError(
                    f"models ({name}): the model list has no {name!r}; it has: {', '.join(listed)}"
                    f"{did_you_mean(name, listed)}"
                )
            for alias in entry.get("aliases", ()):
                if alias in listed:
                    raise ConfigError(f"models ({name}): the alias {alias!r} is a model of the model list itself")

    def names(self, listed: Collection[str]) -> list[str]:
        """Return what agents may ask for: the names of the model list, and their aliases."""
        aliases = [alias for alias, name in self._aliases.items() if "*" not in alias and name in listed]
        return list(dict.fromkeys([*listed, *aliases]))

    def resolve(self, asked: str | None, listed: Collection[str]) -> str | None:
        """Return the name of the model list that an asked one stands for; the asked one where it stands for none.

        A call that names none is for the only model that there is; None where there are several.
        """
        if asked is None:
            return next(iter(listed)) if len(listed) == 1 else None
        if asked in listed:
            return asked
        if asked in self._aliases:
            return self._aliases[asked]
        return next((name for pattern, name in self._patterns if pattern.fullmatch(asked)), asked)

    def with_params(self, model: str | None, path: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Return a request with the parameters of its model; the same object where it has none."""
        entry = self._options.get(model or "")
        names_of = DIALECTS[path].names if path in DIALECTS else None
        if entry is None or names_of is None:
            return fields
        result = fields
        for name, value in entry.get("default_params", {}).items():
            names = names_of.get(name, (name,))
            if all(_get(fields, each) is None for each in names):
                result = _set(result, names[0], value)
        for name, value in entry.get("forced_params", {}).items():
            names = names_of.get(name, (name,))
            for each in [each for each in names if _get(fields, each) is not None] or names[:1]:
                result = _set(result, each, value)
        return result


def _get(fields: dict[str, Any], name: str) -> Any:
    outer, _, inner = name.partition(".")
    return mapping(fields.get(outer)).get(inner) if inner else fields.get(outer)


def _set(fields: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    outer, _, inner = name.partition(".")
    if inner:
        value = {**mapping(fields.get(outer)), inner: value}
    elif outer == "stop_sequences" and isinstance(value, str):
        value = [value]
    return {**fields, outer: value}
