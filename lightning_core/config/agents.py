"""The agent that a config file names, or the program or the service that it describes."""

import shlex
from collections.abc import Mapping
from typing import Any

from lightning_core.agent import LitAgent
from lightning_core.config.components import option_faults
from lightning_core.config.files import ConfigFile
from lightning_core.config.imports import check_origin, load_named, raised_at
from lightning_core.config.options import Options
from lightning_core.errors import ConfigError, InvalidAgent, RegistryError
from lightning_core.registry import did_you_mean

_PLACE = ("agent",)
_WANTED = "'module:name', {command: [program, argument, ...]} or {url: 'http://...'}"


def load_agent(file: ConfigFile, spec: str | Mapping[str, Any], *, has_grader: bool) -> LitAgent[Any]:
    """Return the agent.

    Args:
        file: Where it is named. A program runs in its folder.
        spec: `module:name`, or the options of a `CommandAgent` or of an `HttpAgent`.
        has_grader: Whether a grader scores it: then a program or a service need not score itself.

    Raises:
        ConfigError: When it is none, or cannot be had; says where and what would be right.
    """
    return _named(file, spec) if isinstance(spec, str) else _outside(file, dict(spec), has_grader=has_grader)


def agent_label(spec: str | Mapping[str, Any]) -> str:
    """Return what an agent is called: its path, its command or its URL."""
    if isinstance(spec, str):
        return spec
    return shlex.join(spec["command"]) if "command" in spec else str(spec["url"])


def _named(file: ConfigFile, path: str) -> LitAgent[Any]:
    agent = load_named(file, _PLACE, path)
    check_origin(file, _PLACE, path)
    if not isinstance(agent, LitAgent):
        what = f"the class {agent.__name__}" if isinstance(agent, type) else f"a {type(agent).__name__}"
        raise ConfigError(
            f"{file.where(_PLACE)}: agent {path!r} is {what}; "
            "decorate the function with @rollout, or name an instance of a LitAgent"
        )
    return agent


def _outside(file: ConfigFile, options: dict[str, Any], *, has_grader: bool) -> LitAgent[Any]:
    if ("command" in options) == ("url" in options):
        has = ", ".join(map(repr, options)) or "nothing"
        hint = did_you_mean(next(iter(options), ""), ("command", "url"))
        raise ConfigError(f"{file.where(_PLACE)}: agent is a mapping with {has}; it has to be {_WANTED}{hint}")
    from lightning_core.agent import CommandAgent, HttpAgent  # late: who has neither does not pay for them

    kind: Any = CommandAgent if "command" in options else HttpAgent
    faults = list(option_faults(file, "agent", "this agent", Options(kind), options))
    if faults:
        raise ConfigError("\n".join(faults))
    if has_grader:
        options.setdefault("reward", "grader")
    if kind is CommandAgent:
        options["folder"] = file.path.resolve().parent / options.get("folder", "")
    try:
        agent: LitAgent[Any] = kind(**options)
    except (InvalidAgent, RegistryError) as exc:
        name = str(exc).partition(" ")[0]
        place = ("agent", name) if name in options else _PLACE
        raise ConfigError(f"{file.where(place)}: agent: {exc}{raised_at(file, exc)}") from exc
    return agent
