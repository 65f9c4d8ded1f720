"""What a config file may say."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from lightning_core.config.datasets import EnvironmentSource, Hub
from lightning_core.registry import Kind
from lightning_core.types import NamedResources, RolloutConfig


def _one_of(*kinds: type, wanted: str) -> BeforeValidator:
    """Refuse what is none of some types with one message, where pydantic has one for each of them."""

    def check(value: Any) -> Any:
        if not isinstance(value, kinds):
            raise PydanticCustomError("one_of", "it has to be {wanted}", {"wanted": wanted})
        return value

    return BeforeValidator(check)


Component = Annotated[
    str | dict[str, Any],
    _one_of(str, dict, wanted="a name, 'package.module:Class', or a mapping with name and options"),
]
"""A name, `"package.module:Class"`, or a mapping with a `name` and options."""

AgentSpec = Annotated[
    str | dict[str, Any],
    _one_of(str, dict, wanted="'module:name', {command: [program, argument, ...]} or {url: 'http://...'}"),
]
"""`"module:name"`, or a mapping with `command` or `url`, and options."""


def _kind_of_source(value: Any) -> str:
    if isinstance(value, EnvironmentSource) or (isinstance(value, dict) and "environment" in value):
        return "environment"
    return "mapping" if isinstance(value, dict | Hub) else "samples" if isinstance(value, list) else "text"


_SOURCES = "a file, 'module:name', 'hf:name', {environment: name, ...}, or a list of samples"

Source = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[Any], Tag("samples")]
    | Annotated[Hub, Tag("mapping")]
    | Annotated[EnvironmentSource, Tag("environment")],
    Discriminator(_kind_of_source),
    _one_of(str, list, dict, Hub, EnvironmentSource, wanted=_SOURCES),
]
"""A file, `"module:name"`, `"hf:name"` with or without options, tasks of an environment, or the samples themselves."""

Count = Annotated[int, Field(strict=True, ge=1)]


class Config(BaseModel):
    """The keys of a config file: the parameters of `Trainer` and of `Trainer.fit`, under the same names."""

    model_config = ConfigDict(extra="forbid")

    agent: AgentSpec | None = None
    """`"module:name"` of a `LitAgent`, or the options of a `CommandAgent` or an `HttpAgent`; None for that of the
    datasets' environment.

    Modules are looked for in the config file's folder first, and programs run in it."""
    algorithm: Component
    store: Component = "memory"
    tracer: Component = "otel"
    adapter: Component = "triplet"
    runner: Component = "agent"
    strategy: Component = "local"
    n_runners: Count | None = None
    max_rollouts: Count | None = None
    initial_resources: NamedResources | None = None
    rollout_config: RolloutConfig | None = None
    keep_spans: Count | None = None
    llm_proxy: Annotated[
        str | bool | dict[str, Any] | None,
        _one_of(str, bool, dict, type(None), wanted="a mapping with a model_list, the URL of a proxy, or true"),
    ] = None
    """Options of `LLMProxy`, the URL of one that runs by itself, or true for one whose models come later."""
    budget: dict[str, Any] | None = None
    """What the run may use: `usd`, `tokens`, `calls`, `seconds`."""
    stop_on_identical_failures: bool = True
    """Whether the run ends when its first rollouts have all failed for the same reason."""
    reward: Annotated[
        str | dict[str, Any] | None,
        _one_of(str, dict, type(None), wanted="'module:name' of a grader, a name, or a mapping with name and options"),
    ] = None
    """`"module:name"` of a grader: a function that scores what the agent returned; or a name with options."""
    train_dataset: Source | None = None
    val_dataset: Source | None = None
    test_dataset: Source | None = None
    hooks: list[str] = Field(default_factory=list)
    """`"module:name"` of plugins with hooks: objects, or classes that are called without arguments."""
    loggers: list[Component] = Field(default_factory=list)
    """Where the run's numbers are written, too: names, or mappings with a `name` and options."""


COMPONENTS: dict[str, Kind] = {
    "algorithm": "algorithms",
    "store": "stores",
    "tracer": "tracers",
    "adapter": "adapters",
    "runner": "runners",
    "strategy": "strategies",
}
"""The keys that name a component, and its kind."""

DATASETS = ("train_dataset", "val_dataset", "test_dataset")
