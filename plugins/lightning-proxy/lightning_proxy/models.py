"""The option `models`: other names of a model, what answers when it does not, and its sampling parameters."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NotRequired, Required

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from lightning_core.errors import ConfigError
from lightning_core.registry import did_you_mean
from lightning_proxy.answer import mapping


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
    fallbacks: NotRequired[list[str]]
    """The models that are asked, one after the other, where this one gives no answer."""
    default_params: NotRequired[SamplingParams]
    """What is sent where the agent does not say it."""
    forced_params: NotRequired[SamplingParams]
    """What is sent whatever the agent says."""


_NAMES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "/chat/completions": {"max_tokens": ("max_tokens", "max_completion_tokens")},
    "/completions": {},
    "/messages": {"stop": ("stop_sequences",), "reasoning_effort": ("output_config.effort",)},
    "/responses": {"max_tokens": ("max_output_tokens",), "reasoning_effort": ("reasoning.effort",)},
}
"""By the API, how it calls a parameter where that is another name, or has several; one in an object with a dot."""


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
            for each in (name, *entry.get("fallbacks", ())):
                if each not in listed:
                    raise ConfigError(
                        f"models ({name}): the model list has no {each!r}; it has: {', '.join(listed)}"
                        f"{did_you_mean(each, listed)}"
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

    def fallbacks(self, model: str | None) -> Sequence[str]:
        """Return the models that are asked where this one gives no answer."""
        entry = self._options.get(model or "")
        return () if entry is None else entry.get("fallbacks", ())

    def with_params(self, model: str | None, path: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Return a request with the parameters of its model; the same object where it has none."""
        entry = self._options.get(model or "")
        if entry is None or path not in _NAMES:
            return fields
        found = fields
        for name, value in entry.get("default_params", {}).items():
            names = _NAMES[path].get(name, (name,))
            if all(_get(fields, each) is None for each in names):
                found = _set(found, names[0], value)
        for name, value in entry.get("forced_params", {}).items():
            names = _NAMES[path].get(name, (name,))
            for each in [each for each in names if _get(fields, each) is not None] or names[:1]:
                found = _set(found, each, value)
        return found


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
