"""What `agl run` is given: an agent, a task and resources."""

import json
import sys
import traceback
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from lightning_core.agent import LitAgent
from lightning_core.config.imports import search_first
from lightning_core.config.wanted import wanted
from lightning_core.config.yaml_text import YamlFault, read_yaml
from lightning_core.errors import BrokenPlugin, ConfigError, RegistryError
from lightning_core.registry import load_object
from lightning_core.types import NamedResources, PromptTemplate

MAIN_PROMPT = "main_prompt"
"""The name of a prompt where the resources have none yet."""


def module_path(agent: str) -> str:
    """Return the `module:object` of an agent that may be given as `file.py:object`, ready to be imported.

    The folder of the file, or else the current one, is put in front of the module search path.

    Raises:
        ConfigError: When there is no such file, or its name is none of a module.
    """
    place, _, name = agent.rpartition(":")
    if not place.endswith(".py"):
        search_first(Path.cwd())
        return agent
    file = Path(place).resolve()
    if not file.is_file():
        raise ConfigError(f"agent {agent!r}: there is no file {file}")
    if not file.stem.isidentifier():
        raise ConfigError(f"agent {agent!r}: {file.name} cannot be imported; rename it, as in my_agent.py")
    search_first(file.parent)
    loaded = getattr(sys.modules.get(file.stem), "__file__", None)
    if loaded is not None and Path(loaded).resolve() != file:
        raise ConfigError(f"agent {agent!r}: this process has loaded {loaded} under the name {file.stem!r}; rename it")
    return f"{file.stem}:{name}"


def load_agent(path: str) -> LitAgent[Any]:
    """Import an agent.

    Args:
        path: Its `module:object`.

    Raises:
        ConfigError: When there is no such thing, it cannot be imported (says on which line), or is no agent.
    """
    try:
        agent = load_object(path)
    except RegistryError as exc:
        place = ""
        if isinstance(exc, BrokenPlugin) and exc.__cause__ is not None:
            frames = traceback.extract_tb(exc.__cause__.__traceback__)
            place = "".join(f" ({each.filename}:{each.lineno})" for each in frames[-1:])
        raise ConfigError(f"agent: {exc}{place}") from exc
    if not isinstance(agent, LitAgent):
        what = f"the class {agent.__name__}" if isinstance(agent, type) else f"a {type(agent).__name__}"
        raise ConfigError(
            f"agent {path!r} is {what}; decorate the function with @rollout, or name an instance of a LitAgent"
        )
    return agent


def read_task(given: str) -> Any:
    """Return the task that is given as JSON, as a plain text, or as `@file` of either.

    What begins as an object, a list or a string of JSON does has to be JSON, and so has a file that ends in `.json`.

    Raises:
        ConfigError: When it is no JSON, or the file cannot be read.
    """
    text = _text_of("--task", given)
    is_json = text.lstrip().startswith(("{", "[", '"')) or (given.startswith("@") and given.endswith(".json"))
    try:
        return json.loads(text)
    except json.JSONDecodeError as exc:
        if is_json:
            raise ConfigError(
                f"--task is no valid JSON: {exc.msg}, at line {exc.lineno}, column {exc.colno}; "
                """write it as in: --task '{"question": "..."}'"""
            ) from exc
        return text
    except RecursionError as exc:
        raise ConfigError("--task is nested too deeply") from exc


def read_resources(given: str) -> NamedResources:
    """Return the resources that are given as JSON or YAML, or as `@file` of either.

    Raises:
        ConfigError: When they are not what resources are; says where.
    """
    try:
        resources = TypeAdapter(NamedResources).validate_python(read_yaml(_text_of("--resources", given))[0])
    except YamlFault as exc:
        raise ConfigError(f"--resources: {exc}") from exc
    except ValidationError as exc:
        first = exc.errors(include_input=False, include_url=False)[0]  # the input may hold a key
        place = ".".join(map(str, first["loc"])) or "all of it"
        raise ConfigError(
            f"--resources: {place}: {wanted(first)}; write it as in: --resources "
            """'{"main_llm": {"resource_type": "llm", "endpoint": "http://localhost:8000/v1", "model": "small"}}'"""
        ) from exc
    for name, resource in resources.items():
        if isinstance(resource, PromptTemplate):
            _check_prompt(f"--resources: {name}", resource)
    return resources


def with_prompt(resources: NamedResources | None, given: str) -> NamedResources:
    """Return resources with another text in their one prompt; it is called `main_prompt` where there is none yet.

    Args:
        resources: Stay as they are.
        given: The text, or `@file`.

    Raises:
        ConfigError: When there are several prompts, or the text is malformed.
    """
    prompts = {name: each for name, each in (resources or {}).items() if isinstance(each, PromptTemplate)}
    if len(prompts) > 1:
        raise ConfigError(f"--prompt: there are several prompts ({', '.join(prompts)}); give them with --resources")
    name, before = next(iter(prompts.items()), (MAIN_PROMPT, PromptTemplate(template="")))
    prompt = before.model_copy(update={"template": _text_of("--prompt", given)})
    _check_prompt("--prompt", prompt)
    return {**(resources or {}), name: prompt}


def _check_prompt(label: str, prompt: PromptTemplate) -> None:
    try:
        prompt.placeholders()
    except ValueError as exc:
        raise ConfigError(f"{label}: {exc}") from exc


def _text_of(option: str, given: str) -> str:
    """Return the text itself, that of `@file`, or with `@-` that of stdin."""
    if not given.startswith("@"):
        return given
    if given == "@-":
        return sys.stdin.read()
    path = Path(given[1:])
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as exc:
        raise ConfigError(f"{option}: cannot read {path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{option}: {path} is no UTF-8 text: {exc}") from exc
