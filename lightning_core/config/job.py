"""From a config file to a trainer, with the agent and the datasets that it is to run."""

import inspect
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from lightning_core.agent import Environment, Grader, LitAgent
from lightning_core.agent.environments import grader_of
from lightning_core.config.components import (
    EXPECTED,
    GIVEN,
    MAIN_PROMPT,
    build,
    check_components,
    faults_at,
    load_agent,
    load_named,
    located,
    search_first,
    tasks_of,
)
from lightning_core.config.datasets import EnvironmentSource, Hub, load_dataset
from lightning_core.config.files import ConfigFile, Place, override, read_config, tell_numbers
from lightning_core.config.model import COMPONENTS, DATASETS, Config
from lightning_core.errors import (
    ConfigError,
    InvalidAgent,
    InvalidInput,
    InvalidOptions,
    RegistryError,
)
from lightning_core.plugins import Hooks
from lightning_core.registry import SHIPS_IN, check_options, default_registry, did_you_mean
from lightning_core.registry.options import Options, show_value, wanted
from lightning_core.runs import FitResult, RunFolder
from lightning_core.runs.loggers import RunLogger
from lightning_core.runs.plan import RunPlan, plan_of
from lightning_core.secrets import remember_secrets, without_secrets
from lightning_core.trainer import Trainer
from lightning_core.types import LLM, Dataset, PromptTemplate, ProxyLLM, RolloutConfig

if TYPE_CHECKING:
    from lightning_core.display.live import Display

_RESOURCES = {kind.model_fields["resource_type"].default: kind for kind in (LLM, ProxyLLM, PromptTemplate)}

_MASKED = re.compile(r"\*{3}|\w+://\S*\*{3}\S*")
"""A secret, or a URL with one, that is not shown."""


def explain(file: ConfigFile, fault: ErrorDetails, keys: Iterable[str]) -> str:
    """Say where a fault is, what is wrong, and what would be right.

    No value of a mapping is shown, nor one that is a secret.

    Args:
        file: What was validated.
        fault: One of the errors of pydantic.
        keys: What the file may have at its top.
    """
    place, keys = _place_in_file(fault["loc"], keys)
    if fault["type"].startswith("union_tag_"):
        place = (*place, "resource_type")
    name, where = ".".join(map(str, place)), file.where(place)
    match fault["type"]:
        case "missing":
            return f"{where}: the key {name!r} is missing"
        case "extra_forbidden":
            return f"{where}: unknown key {name!r}{did_you_mean(place[-1], keys)}"
        case "union_tag_not_found":
            return f"{where}: the key {name!r} is missing; it is one of {', '.join(_RESOURCES)}"
        case "union_tag_invalid":
            tag = fault["ctx"]["tag"]
            return f"{where}: {name} is {tag!r}; it is one of {', '.join(_RESOURCES)}{did_you_mean(tag, _RESOURCES)}"
        case "model_attributes_type":
            words = "it has to be a mapping, as in {resource_type: prompt_template, template: ...}"
        case _:
            words = wanted(fault)
    return f"{where}: {name} is {show_value(name, fault['input'])}; {words}"


def hidden_values(file: ConfigFile) -> list[str]:
    """Say which values are missing because `***` stands in their place, as in what a dry run prints."""

    def walk(place: Place, value: Any) -> Iterator[Place]:
        if isinstance(value, dict | list):
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                yield from walk((*place, key), item)
        elif isinstance(value, str) and _MASKED.fullmatch(value):
            yield place

    values = {key: value for key, value in file.values.items() if key not in DATASETS}
    named = {place: ".".join(map(str, place)) for place in walk((), values)}
    return [
        f"{file.where(place)}: {name} has '***' in place of a secret; set it, as in --set {name}=VALUE, or remove it "
        "where the environment has it"
        for place, name in named.items()
    ]


def in_order(file: ConfigFile, faults: Iterable[str]) -> list[str]:
    """Return faults in the order of the file; first what has no line, last what was set over it."""

    def place(fault: str) -> tuple[bool, int]:
        line = re.match(re.escape(str(file.path)) + r":(\d+): ", fault)
        return not fault.startswith(str(file.path)), 0 if line is None else int(line[1])

    return sorted(faults, key=place)


def _place_in_file(place: Place, keys: Iterable[str]) -> tuple[Place, Iterable[str]]:
    """Return a place without the kinds that pydantic names on its way, and the keys that there may be there."""
    match place:
        case ("initial_resources", str() as name, str() as kind, *rest) if rest:
            return ("initial_resources", name, *rest), _RESOURCES[kind].model_fields
        case ("rollout_config", *_):
            return place, RolloutConfig.model_fields
        case (str() as key, "environment", *rest) if key in DATASETS:
            return (key, *rest), EnvironmentSource.model_fields
        case (str() as key, "text" | "samples" | "mapping", *rest) if key in DATASETS:
            return (key, *rest), Hub.model_fields
    return place, keys


def agent_label(spec: str | Mapping[str, Any] | None) -> str:
    """Return what an agent is called: its path, its command or its URL."""
    if spec is None:
        return "the environment's agent"
    if isinstance(spec, str):
        return spec
    return shlex.join(spec["command"]) if "command" in spec else str(spec["url"])


def _agent_outside(file: ConfigFile, spec: Mapping[str, Any], *, has_grader: bool) -> LitAgent[Any]:
    """Return an agent that is a program, which runs in the file's folder, or a service.

    One that has a grader need not score itself.
    """
    registry, options = default_registry(), dict(spec)
    kinds = {component.name for component in registry.components("agents")} | set(SHIPS_IN["agents"])
    named = [name for name in options if name in kinds]
    if len(named) != 1:
        has = ", ".join(map(repr, options)) or "nothing"
        hint = did_you_mean(next(iter(options), ""), kinds)
        raise ConfigError(
            f"{file.where(('agent',))}: agent is a mapping with {has}; it has to be 'module:name', "
            f"{{command: [program, argument, ...]}} or {{url: 'http://...'}}{hint}"
        )
    with located(file, "agent", also=InvalidAgent):
        kind: Any = registry.load("agents", named[0])
        check_options("agent", options, kind)
        if has_grader:
            options.setdefault("reward", "grader")
        if "folder" in inspect.signature(kind).parameters:
            options["folder"] = file.path.resolve().parent / options.get("folder", "")
        agent: LitAgent[Any] = kind(**options)
    return agent


@dataclass(frozen=True, slots=True)
class Job:
    """A trainer and what it is to run."""

    trainer: Trainer
    agent: LitAgent[Any]
    train_dataset: Dataset[Any] | None
    val_dataset: Dataset[Any] | None
    test_dataset: Dataset[Any] | None
    config: Config
    """What it was made of."""
    options: dict[str, Options]
    """What each component takes, by its key."""
    file: ConfigFile
    """Where it stands."""
    environment: Environment | None = None
    """Where its datasets are from; None where they are not of one."""
    grader: Grader | None = None
    """The one that it names; None for none."""

    def plan(self) -> RunPlan | None:
        """Return the most that it will do; None where its algorithm does not say. See `plan_of`.

        Raises:
            ConfigError: When the algorithm cannot use what the config gives it.
            AlgorithmError: When it knows already that something else is missing.
        """
        algorithm, initial = self.trainer.algorithm, self.trainer.initial_resources
        if algorithm is None:
            return None
        resources = algorithm.get_initial_resources()
        if initial is not None or resources is None:
            algorithm.set_initial_resources(initial or {})
        proxy = self.trainer.llm_proxy
        if proxy is None or not proxy.is_remote:  # which models that has is not known yet
            algorithm.set_llm_proxy(self.trainer.llm_proxy)
            algorithm.set_budget(self.trainer.next_budget())
        try:
            plan = plan_of(algorithm, self.train_dataset, self.val_dataset, self.test_dataset)
            if not self.config.hooks and (proxy is None or not proxy.is_remote):  # one may bring a model and its key
                algorithm.check_access()
        except InvalidInput as exc:
            raise ConfigError(f"{self.file.where(('algorithm',))}: algorithm: {exc}") from exc
        finally:
            if initial is None:
                algorithm.set_initial_resources(resources)
        return plan

    def fit(self) -> FitResult:
        """Run it; see `Trainer.fit`."""
        return self.trainer.fit(
            self.agent, self.train_dataset, val_dataset=self.val_dataset, test_dataset=self.test_dataset
        )


def load_job(
    path: Path,
    *,
    hooks: list[object] | None = None,
    overrides: Iterable[str] = (),
    dry_run: bool = False,
    run_dir: Path | RunFolder | None = None,
    progress: "bool | Display | None" = False,
) -> Job:
    """Make a trainer, an agent and datasets of a config file.

    The file's folder is put in front of the module search path, as Python does with a script's.

    Args:
        path: The config file.
        hooks: More plugins with hooks, told before those of the file.
        overrides: What is set over the file, each as `algorithm.beam_width=2`; the value is YAML.
        dry_run: Whether it is only to be checked. Then its store is not built, as that may make a database: the store
            of this job's trainer is one of memory.
        run_dir: Where runs get folders, as in `Trainer`; with a store in them, where the file names none.
        progress: Whether, or how, a run is shown while it goes on, as in `Trainer`.

    Raises:
        ConfigError: When the file, or what it names, is wrong; says where and what would be right.
    """
    file = override(read_config(path), overrides)
    if hidden := hidden_values(file):
        raise ConfigError("\n".join(in_order(file, hidden)))
    folder = file.path.resolve().parent
    search_first(folder)
    config = _validate(file)
    for key in config.model_fields_set - set(DATASETS):
        remember_secrets(key, getattr(config, key))
    _check_templates(file, config)
    agent = None
    if isinstance(config.agent, str):
        with located(file, "agent"):
            agent = load_agent(config.agent, folder)
    elif config.agent is not None:
        agent = _agent_outside(file, config.agent, has_grader=config.reward is not None)
    options, faults = check_components(file)
    if faults:
        raise ConfigError("\n".join(in_order(file, faults)))
    environment, rows = tasks_of(file, config, folder, run_dir if isinstance(run_dir, RunFolder) else None)
    datasets = {key: _dataset(file, key, getattr(config, key), folder) for key in DATASETS} | rows
    initial_resources = config.initial_resources
    if agent is None:
        assert environment is not None, "a config without an agent has an environment"
        with located(file, next(iter(rows))):
            agent = environment.agent()
        if environment.prompt is not None:
            prompts = {MAIN_PROMPT: PromptTemplate(template=environment.prompt)}
            has_prompt = any(isinstance(each, PromptTemplate) for each in (initial_resources or {}).values())
            initial_resources = initial_resources if has_prompt else {**prompts, **(initial_resources or {})}
    plugins = []
    for index, name in enumerate(config.hooks):
        with located(file, "hooks", index, also=Exception):
            plugin = load_named(file, name)
            plugins.append(plugin() if isinstance(plugin, type) else plugin)
            Hooks(plugins[-1:])
    reward = None
    if config.reward is not None:
        with located(file, "reward", also=ValueError):
            is_path = isinstance(config.reward, str) and ":" in config.reward
            reward = Grader.of(load_named(file, str(config.reward)) if is_path else config.reward)
    loggers = [build(file, "loggers", spec, RunLogger, "loggers", index) for index, spec in enumerate(config.loggers)]
    keys = ["algorithm", "tracer", "adapter"]
    if not dry_run and (run_dir is None or "store" in config.model_fields_set):
        keys.append("store")
    built = {key: build(file, COMPONENTS[key], getattr(config, key), EXPECTED[key], key) for key in keys}
    try:
        trainer = Trainer(
            **built,
            runner=config.runner,
            strategy=config.strategy,
            n_runners=config.n_runners,
            max_rollouts=config.max_rollouts,
            initial_resources=initial_resources,
            rollout_config=config.rollout_config,
            keep_spans=config.keep_spans,
            reward=reward if environment is None or reward is not None else grader_of(environment),
            hooks=[*(hooks or ()), *plugins],
            loggers=loggers,
            run_dir=None if dry_run else run_dir,
            llm_proxy=config.llm_proxy,
            budget=config.budget,
            stop_on_identical_failures=config.stop_on_identical_failures,
            progress=progress,
        )
    except InvalidOptions as exc:
        raise ConfigError("\n".join(faults_at(file, (exc.label,), exc))) from exc
    except (ValueError, RegistryError) as exc:
        raise ConfigError(f"{file.where(_place_of(str(exc), config))}: {exc}") from exc
    return Job(
        trainer, agent, **datasets, config=config, options=options, file=file, environment=environment, grader=reward
    )


def _validate(file: ConfigFile) -> Config:
    try:
        config = Config.model_validate(file.values)
    except ValidationError as exc:
        faults = [*_without_agent(file), *(explain(file, fault, Config.model_fields) for fault in exc.errors())]
        faults += check_components(file)[1]
        raise ConfigError("\n".join(in_order(file, faults))) from exc
    if missing := _without_agent(file):
        raise ConfigError("\n".join(in_order(file, [*missing, *check_components(file)[1]])))
    return config


def _without_agent(file: ConfigFile) -> list[str]:
    """Say that the agent is missing, where no environment has one."""
    sources = [file.values.get(key) for key in DATASETS]
    if file.values.get("agent") is not None or any(
        isinstance(each, dict) and "environment" in each for each in sources
    ):
        return []
    return [f"{file.where(('agent',))}: the key 'agent' is missing"]


def _check_templates(file: ConfigFile, config: Config) -> None:
    """Refuse the name of a file where the text of a prompt belongs."""
    for name, resource in (config.initial_resources or {}).items():
        if isinstance(resource, PromptTemplate) and _FILE_NAME.fullmatch(resource.template):
            place = ("initial_resources", name, "template")
            raise ConfigError(
                f"{file.where(place)}: initial_resources.{name}.template is {resource.template!r}, which names a file; "
                "give the text of the prompt itself, as in `template: |-` with the text below it"
            )


_FILE_NAME = re.compile(r"@?[\w./~-]+\.(txt|md|jinja2?|j2|poml|prompt|tmpl|ya?ml|json)", re.IGNORECASE)


def _place_of(message: str, config: Config) -> Place:
    """Return the place of what a trainer refuses: an option of a component that it builds, or a key and below.

    Args:
        message: Such as `n_epochs is 0; ...`, or `initial_resources: main_prompt: ...`.
        config: What it is about.
    """
    name = message.partition(" ")[0].rstrip(":")
    for key, spec in (("runner", config.runner), ("strategy", config.strategy)):
        if isinstance(spec, Mapping) and name in spec:
            return (key, name)
    return tuple(message.split(": ")[:-1]) if message.startswith(f"{name}: ") else (name,)


def _dataset(file: ConfigFile, key: str, source: Any, folder: Path) -> Dataset[Any] | None:
    if source is None or isinstance(source, EnvironmentSource):
        return None
    with located(file, key):
        return load_dataset(source, folder)


def resolved_config(job: Job) -> str:
    """Return the config of a job as YAML, after comments: the size of each dataset, and what its algorithm plans.

    It can be used as a config file in the same folder, where it means the same job. Only secrets are not in it: in
    their place stands `***`. Options that a config file cannot say, such as a client that a program makes, are left
    out.

    Raises:
        ConfigError: When the algorithm cannot use what the config gives it.
        AlgorithmError: When the algorithm knows already that something is missing.
    """
    values = resolved_values(job)
    sizes = {key: getattr(job, key) for key in DATASETS}
    comments = [f"# {key}: {len(dataset):,} samples\n" for key, dataset in sizes.items() if dataset is not None]
    if (plan := job.plan()) is not None:
        comments += [f"# {line}\n" for line in str(plan).splitlines()]
    return "".join(comments) + yaml.dump(
        values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH, default_flow_style=False
    )


def resolved_values(job: Job) -> dict[str, Any]:
    """Return the config of a job by key, as values of YAML: what was set, and defaults. `***` stands for secrets.

    The store is left out where none was set: a run then has its store in its folder.
    """
    keys = [key for key in Config.model_fields if key != "store" or key in job.config.model_fields_set]
    return {key: _resolved(job, key) for key in keys}


def _resolved(job: Job, key: str) -> Any:
    value = getattr(job.config, key)
    if key in COMPONENTS:
        value = _component(job, key, value)
    elif key == "n_runners":
        value = getattr(job.trainer.strategy, "n_runners", value)
    elif key in DATASETS:
        # a task may well have a field named `key`, and a run that is resumed needs it
        return value.model_dump(exclude_none=True) if isinstance(value, BaseModel) else value
    return without_secrets(key, value)


def _component(job: Job, key: str, spec: str | dict[str, Any]) -> dict[str, Any]:
    given = {"name": spec} if isinstance(spec, str) else spec
    defaults = {name: value for name, value in job.options[key].defaults() if name not in GIVEN.get(key, ())}
    return {"name": given["name"]} | defaults | given


class _Dumper(yaml.SafeDumper):
    """Writes a text of several lines as such, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)
tell_numbers(_Dumper)

_WIDTH = 120
