"""What a config file may say."""

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import ErrorDetails, PydanticCustomError

from lightning_core.config.datasets import Hub
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
    return "mapping" if isinstance(value, dict | Hub) else "samples" if isinstance(value, list) else "text"


Source = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[Any], Tag("samples")] | Annotated[Hub, Tag("mapping")],
    Discriminator(_kind_of_source),
    _one_of(str, list, dict, Hub, wanted="a file, 'module:name', 'hf:name', or a list of samples"),
]
"""A file, `"module:name"`, `"hf:name"` with or without options, or the samples themselves."""

Count = Annotated[int, Field(strict=True, ge=1)]


class Config(BaseModel):
    """The keys of a config file: the parameters of `Trainer` and of `Trainer.fit`, under the same names."""

    model_config = ConfigDict(extra="forbid")

    agent: AgentSpec
    """`"module:name"` of a `LitAgent`, or the options of a `CommandAgent` or an `HttpAgent`.

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
    llm_proxy: Annotated[
        str | bool | dict[str, Any] | None,
        _one_of(str, bool, dict, type(None), wanted="a mapping with a model_list, the URL of a proxy, or true"),
    ] = None
    """Options of `LLMProxy`, the URL of one that runs by itself, or true for one whose models come later."""
    budget: dict[str, Any] | None = None
    """What the run may use: `usd`, `tokens`, `calls`, `seconds`."""
    stop_on_identical_failures: bool = True
    """Whether the run ends when its first rollouts have all failed for the same reason."""
    reward: str | None = None
    """`"module:name"` of a grader: a function that scores what the agent returned."""
    train_dataset: Source | None = None
    val_dataset: Source | None = None
    test_dataset: Source | None = None
    hooks: list[str] = Field(default_factory=list)
    """`"module:name"` of plugins with hooks: objects, or classes that are called without arguments."""


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


IS_TO_BE = "it has to be "

_WANTED = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "a text",
    **dict.fromkeys(("list_type", "tuple_type", "set_type", "frozen_set_type"), "a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type", "dataclass_type"), "a mapping"),
    "none_required": "null",
    "finite_number": "a finite number",
    "greater_than_equal": "{ge} or more",
    "greater_than": "more than {gt}",
    "less_than_equal": "{le} or less",
    "less_than": "less than {lt}",
    "literal_error": "{expected}",
    "enum": "{expected}",
}
"""By the kind of a fault of pydantic, which has the values in braces."""

_FOR_PROGRAMS = dict.fromkeys(
    ("needs_python_object", "is_instance_of", "callable_type"), "only a program can give it, or it is left out"
)
"""For a type that no config file can say."""


def wanted(fault: ErrorDetails) -> str:
    """Say what would be right where pydantic found a fault."""
    kind = fault["type"]
    if kind in _FOR_PROGRAMS:
        return _FOR_PROGRAMS[kind]
    if kind in _WANTED:
        return IS_TO_BE + _WANTED[kind].format(**fault.get("ctx", {}))
    if kind == "missing":
        return "the key is missing"
    if kind == "extra_forbidden":
        return "there is no such key"
    return fault["msg"].removeprefix("Value error, ").replace("Input should ", "it has to ")


def wanted_of(faults: Iterable[ErrorDetails]) -> str:
    """Say what would be right where a value is none of several types: each fault tells of one of them."""
    words = dict.fromkeys(map(wanted, faults))
    kinds = [each.removeprefix(IS_TO_BE) for each in words if each.startswith(IS_TO_BE)]
    others = [each for each in words if not each.startswith(IS_TO_BE)]
    return " or ".join([*([IS_TO_BE + " or ".join(kinds)] if kinds else []), *others])
