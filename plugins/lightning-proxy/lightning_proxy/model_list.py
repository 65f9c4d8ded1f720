"""The list of models, in the form of LiteLLM's: which name leads to which backend."""

import inspect
import os
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NotRequired, Required

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from lightning_core.errors import ConfigError, InvalidComponent
from lightning_core.registry import Registry
from lightning_proxy.backend import Backend
from lightning_proxy.dialects.openai import RETURN_TOKEN_IDS

_LEFT_OUT_SECONDS = 60.0
_CALLS = 2
"""So many different calls, and a refusal is the backend's own; that of one may be the call's."""
_NONE: frozenset[str] = frozenset()


class RefusedFields:
    """The fields that a replica refuses from every caller.

    A field is left out for a minute when two different calls were refused for it, and went well without it. One that
    was ever taken is known: then a refusal is that of a call which cannot have it, and of no other one.

    Args:
        always_asked: Fields that are never left out, because somebody says that the backend knows them.
    """

    def __init__(self, always_asked: Set[str] = _NONE) -> None:
        self._always_asked = always_asked
        self._taken: set[str] = set()
        self._calls: dict[str, set[int]] = {}
        """Those that were refused for a field."""
        self._until: dict[str, float] = {}
        """How long a field is left out, or if it is always asked, not told of again."""

    def at(self, now: float) -> Set[str]:
        """Return what is to be left out."""
        if not self._until:
            return _NONE
        return {name for name, until in self._until.items() if now < until} - self._always_asked

    def take(self, names: Iterable[str]) -> None:
        """Record fields of a call that went well."""
        for name in names:
            if name not in self._taken:
                self._taken.add(name)
                self._calls.pop(name, None)
                self._until.pop(name, None)

    def refuse(self, names: Iterable[str], call: object, now: float) -> Set[str]:
        """Record fields for which a call was refused that went well without them.

        Args:
            names: The fields.
            call: What tells it from others, and is equal when it is made again.
            now: The time.

        Returns:
            Those that somebody should hear of: each once, and one that is always asked once a minute.
        """
        news = set()
        for name in names:
            is_new = name not in self._until
            if name in self._always_asked:
                if not is_new and now < self._until[name]:
                    continue
                is_new = True
            elif name in self._taken:
                continue
            elif is_new:
                calls = self._calls.setdefault(name, set())
                calls.add(hash(call))
                if len(calls) < _CALLS:
                    continue
            self._until[name] = now + _LEFT_OUT_SECONDS
            if is_new:
                news.add(name)
        return news

    def clear(self) -> None:
        """Forget everything."""
        self._taken.clear()
        self._calls.clear()
        self._until.clear()


_OPENAI_PROVIDERS = frozenset({"openai", "hosted_vllm", "vllm", "sglang", "text-completion-openai", "custom_openai"})
"""LiteLLM's names of providers that speak OpenAI's API."""

_OWN_SERVERS = frozenset({"hosted_vllm", "vllm", "sglang"})
"""Those of them that are servers of one's own."""

_BASE_VARIABLE = "OPENAI_BASE_URL"
"""Where the backend `openai` finds the server that no `api_base` names."""

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

_PRICES = (
    *("input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost"),
    *("cache_creation_input_token_cost", "cache_creation_input_token_cost_above_1hr"),
)

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


@dataclass(slots=True, eq=False)
class Replica:
    """A backend that answers for a model, and how it stands."""

    model_name: str
    model: str
    """What the backend calls it."""
    backend: Backend
    input_price: float | None = None
    """US dollars for a token."""
    output_price: float | None = None
    cached_price: float | None = None
    """For a token of the prompt that the backend had in its prefix cache; None for that of any other."""
    written_price: float | None = None
    """For a token of the prompt that the provider wrote to its cache; None for that of any other."""
    written_for_an_hour_price: float | None = None
    """For one that it keeps there for an hour; None for that of any other written one."""
    refused_fields: RefusedFields = field(default_factory=RefusedFields)
    """What it was asked besides what agents ask, and refused."""
    is_owned: bool = True
    """Whether the proxy made the backend, and so closes it."""
    in_flight: int = 0
    assigned: int = 0
    """How many attempts were sent here so far."""
    failures: int = 0
    """In a row."""
    outages: int = 0
    """How often it was left out since an answer of it last came to its end."""
    has_answered: bool = False
    """Whether it ever answered anything."""
    down_since: float = 0.0
    """When the last outage began, in the clock's time."""
    down_until: float = 0.0
    """In the clock's time; 0 while nothing is known against it."""
    lacked_tokens: bool = False
    """Whether an answer of it came without the token ids that it is said to give."""
    is_half_open: bool = False
    """Whether a call is under way that shows whether it is back."""
    spec: object = field(default=None, repr=False)
    """What it was made from."""

    @property
    def converts(self) -> bool:
        """Whether calls of other APIs for conversations are made calls of chat for it: chat alone has tokens."""
        return self.backend.gives_tokens is True or self.backend.chat_only

    def cost(
        self,
        input_tokens: int | None,
        output_tokens: int | None,
        cached_tokens: int | None = None,
        written_tokens: int | None = None,
        written_for_an_hour: int | None = None,
    ) -> float | None:
        """Return what a call costs, in US dollars, by the prices that were given, or else by the backend's.

        None where it is not known.
        """
        if self.input_price is None and self.output_price is None:
            return self._cost_of_backend(
                input_tokens, output_tokens, cached_tokens, written_tokens, written_for_an_hour
            )
        input_price, output_price = self.input_price or 0.0, self.output_price or 0.0
        if (input_price and input_tokens is None) or (output_price and output_tokens is None):
            return None
        total = (input_tokens or 0) * input_price + (output_tokens or 0) * output_price
        written_price = input_price if self.written_price is None else self.written_price
        hour_price = written_price if self.written_for_an_hour_price is None else self.written_for_an_hour_price
        cached_price = input_price if self.cached_price is None else self.cached_price
        left = input_tokens or 0  # each token has one price, whatever a backend counts
        for_an_hour = min(written_for_an_hour or 0, written_tokens or 0)
        for count, price in (
            (cached_tokens, cached_price),
            (for_an_hour, hour_price),
            ((written_tokens or 0) - for_an_hour, written_price),
        ):
            taken = min(count or 0, left)
            left -= taken
            total += taken * (price - input_price)
        return total

    def _cost_of_backend(self, *counts: int | None) -> float | None:
        if not any(counts[3:]):  # a backend may be older than written tokens
            return self.backend.cost(*counts[:3])
        try:
            inspect.signature(self.backend.cost).bind(*counts)
        except TypeError:
            counts = counts[:3]
        return self.backend.cost(*counts)


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
    unknown = sorted(set(entry) - set(ModelConfig.__annotations__))
    if unknown:
        takes = ", ".join(ModelConfig.__annotations__)
        raise ConfigError(f"model_list[{number}] ({name}) has no field {unknown[0]!r}; it has: {takes}")
    params = entry.get("litellm_params", {})
    if not isinstance(params, Mapping):
        raise ConfigError(f"model_list[{number}] ({name}): litellm_params is a {type(params).__name__}, not a mapping")
    given = entry.get("backend")
    model_name = str(params.get("model") or name)
    if "*" in name + model_name:
        raise ConfigError(
            f"model_list[{number}] ({name}): '*' stands for no other name; give each model an entry, and one of them "
            "more names with models=[{'model_name': ..., 'aliases': ['*']}]"
        )
    provider, model = _provider(model_name)
    options = {option: value for option, value in params.items() if option not in _OWN_PARAMS}
    spec = given
    is_openai = False
    if given is None:
        is_openai = provider in _OPENAI_PROVIDERS or (provider is None and "api_base" in options)
        spec = "openai" if is_openai else "litellm"
    if is_openai and provider in _OWN_SERVERS and "api_base" not in options and not os.environ.get(_BASE_VARIABLE):
        raise ConfigError(
            f"model_list[{number}] ({name}): {model_name!r} has no api_base, and would go to OpenAI; give the URL of "
            f"your server, as http://127.0.0.1:8000/v1, or set {_BASE_VARIABLE}"
        )
    if spec == "litellm":  # it needs the provider's prefix
        model = model_name
        options = {"model": model, **options}
    elif provider not in _OPENAI_PROVIDERS:
        model = model_name
    if isinstance(spec, str):
        spec = {"name": spec, **options}
    elif isinstance(spec, Mapping):
        spec = {**spec, **options}
    prices = {**entry.get("model_info", {}), **params}
    try:
        backend = registry.build("backends", spec, expected=Backend)
    except (ConfigError, InvalidComponent) as exc:
        is_unknown = is_openai and "has no option" in str(exc)
        hint = " (what else LiteLLM takes is for `backend: litellm`, in its option `params`)" if is_unknown else ""
        raise ConfigError(f"model_list[{number}] ({name}): {exc}{hint}") from exc
    input_price, output_price, cached_price, written_price, hour_price = (
        _price(number, price, prices) for price in _PRICES
    )
    return Replica(
        model_name=name,
        model=model,
        backend=backend,
        input_price=input_price,
        output_price=output_price,
        cached_price=cached_price,
        written_price=written_price,
        written_for_an_hour_price=hour_price,
        refused_fields=RefusedFields(frozenset({RETURN_TOKEN_IDS} if backend.gives_tokens else ())),
        is_owned=not isinstance(given, Backend),
        spec=_copied(entry),
    )


def _provider(model: str) -> tuple[str | None, str]:
    """Split LiteLLM's prefix off; a slash after anything else is part of the name."""
    prefix, slash, rest = model.partition("/")
    return (prefix, rest) if slash and prefix in _OPENAI_PROVIDERS | _OTHER_PROVIDERS else (None, model)


def _price(number: int, name: str, prices: Mapping[str, Any]) -> float | None:
    price = prices.get(name)
    if price is None:
        return None
    if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < float("inf"):
        raise ConfigError(f"model_list[{number}]: {name} is {price!r}; it is a price in US dollars, 0 or more")
    return float(price)


def _copied(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in entry.items()}
