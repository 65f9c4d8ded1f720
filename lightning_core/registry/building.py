"""From a class or a function, and options, to an instance."""

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from lightning_core.errors import BrokenPlugin, InvalidComponent, InvalidOptions, UnknownComponent
from lightning_core.registry.options import Options, did_you_mean


def load_object(path: str) -> Any:
    """Import what `"package.module:attribute"` names; the attribute may be dotted.

    Raises:
        InvalidComponent: `path` is not of that form.
        UnknownComponent: There is no such module, or the module has no such attribute.
        BrokenPlugin: The module is there, and importing it raised, or tried to end the process; the cause is chained.
    """
    module_name, _, attribute = path.partition(":")
    if module_name.endswith(".py"):
        dotted = ".".join(part for part in PurePath(module_name).with_suffix("").parts if part.isidentifier())
        raise InvalidComponent(f"{path!r} names a file; name its module: {f'{dotted}:{attribute}'!r}")
    if not all(part.isidentifier() for part in [*module_name.split("."), *attribute.split(".")]):
        raise InvalidComponent(f"{path!r} does not name an object; the form is 'package.module:attribute'")
    found = _import_module(module_name, path)
    owner = f"module {module_name!r}"
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as exc:
            names = [name for name in dir(found) if not name.startswith("_")]
            raise UnknownComponent(f"{owner} has no {part!r}, which {path!r} names{did_you_mean(part, names)}") from exc
        except Exception as exc:  # a module may import lazily, in its __getattr__
            raise BrokenPlugin(f"{part!r} of {owner} cannot be imported: {type(exc).__name__}: {exc}") from exc
        owner = repr(part)
    return found


def _import_module(module_name: str, path: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as exc:
        if isinstance(exc, ModuleNotFoundError) and f"{module_name}.".startswith(f"{exc.name}."):
            raise UnknownComponent(
                f"no module {exc.name!r}, which {path!r} names; is it installed, or its folder on sys.path?"
            ) from exc
        raise BrokenPlugin(f"module {module_name!r} cannot be imported: {type(exc).__name__}: {exc}") from exc


Kind = Literal[
    "algorithms",
    "stores",
    "tracers",
    "adapters",
    "runners",
    "strategies",
    "proxies",
    "backends",
    "agents",
    "commands",
    "pages",
    "hooks",
]
"""What a component is for."""

KINDS: tuple[Kind, ...] = get_args(Kind)
"""All kinds, in the order in which they are listed."""

GROUPS: Mapping[Kind, str] = {kind: f"lightning_core.{kind}" for kind in KINDS} | {"hooks": "lightning_core"}
"""The entry-point group of each kind. Plugins with hooks are in pluggy's group, which is named as the project is."""

SINGULAR: Mapping[Kind, str] = {
    "algorithms": "algorithm",
    "stores": "store",
    "tracers": "tracer",
    "adapters": "adapter",
    "runners": "runner",
    "strategies": "strategy",
    "proxies": "proxy",
    "backends": "backend",
    "agents": "agent",
    "commands": "command",
    "pages": "page",
    "hooks": "hook plugin",
}
"""What one component of a kind is called in a message."""

ALIASES: Mapping[Kind, Mapping[str, str]] = {"strategies": {"shm": "local", "cs": "processes"}}
"""Other names of a component, per kind: alias -> name."""

State = Literal["ok", "blocked", "duplicate", "incompatible", "broken"]
"""How a component stands.

- `ok`: nothing is known against it. Before it was imported, that is not much.
- `blocked`: `AGL_PLUGINS_BLOCK` names it; it is as if it were not installed.
- `duplicate`: another distribution offers the same name of the same kind.
- `incompatible`: its distribution requires another version of the core than the one that is installed.
- `broken`: it was imported, and that failed, or what was found there is of another kind.
"""


@dataclass(frozen=True, slots=True)
class Component:
    """A component that an installed distribution offers. Nothing of it was imported to know this."""

    kind: Kind
    name: str
    """What a person asks for it by."""
    distribution: str
    """The distribution that declares it."""
    version: str
    """That distribution's version."""
    value: str
    """Where it is, as `package.module:attribute`."""
    state: State = "ok"
    """How it stands, as far as metadata tells."""
    problem: str | None = None
    """What is wrong, and what to do about it; None when `state` is `ok`."""

    def __str__(self) -> str:
        return f"{SINGULAR[self.kind]} {self.name!r} of {self.origin}"

    @property
    def origin(self) -> str:
        """The distribution with its version."""
        return f"{self.distribution} {self.version}".strip()


T = TypeVar("T")

Spec: TypeAlias = T | type[T] | Callable[..., T] | str | Mapping[str, Any]
"""Whatever says a component: an instance, a class or a factory, an installed name or an import path, or a mapping with
its `name` and options."""


def require_buildable(label: str, source: object, expected: type) -> None:
    """Refuse what is no instance of `expected`, and cannot be called for one.

    Raises:
        InvalidComponent: When it is so. What a function returns is known only when it is called.
    """
    is_wrong_class = isinstance(source, type) and not issubclass(source, expected)
    if not isinstance(source, expected) and (is_wrong_class or not is_factory(source)):
        raise InvalidComponent(
            f"{label} is {in_words(source)}; it has to be an instance or a subclass of {expected.__name__}, "
            "or a function that returns an instance"
        )


def build_from(
    label: str, source: Any, expected: type[T], *, options: Mapping[str, Any], defaults: Mapping[str, Any]
) -> T:
    """Return `source` where it is a ready instance, else what it gives when it is called; see `Registry.build`.

    Raises:
        InvalidComponent: It is not an `expected`; `InvalidOptions` where it does not take the options.
    """
    require_buildable(label, source, expected)
    if isinstance(source, expected):
        if options:
            raise InvalidComponent(
                f"{label} is a ready {type(source).__name__} and takes no options; got {', '.join(map(repr, options))}"
            )
        return source
    takes = Options(source)
    if faults := takes.faults(label, options, supplied=defaults):
        raise InvalidOptions(label, faults)
    built = source(**{name: value for name, value in defaults.items() if name in takes.parameters} | dict(options))
    if not isinstance(built, expected):
        raise InvalidComponent(f"{label} gave {in_words(built)}, which is no {expected.__name__}")
    return built


def is_factory(source: object) -> bool:
    """Whether `source` is called for an instance."""
    return isinstance(source, type | functools.partial) or inspect.isroutine(source)


def in_words(value: object) -> str:
    """Return what a value is, for a message; without its content, which may be a secret."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return repr(value) if value is None or isinstance(value, bool | int | float) else f"a {type(value).__name__}"


def path_of(source: Any) -> str:
    """Return where something is defined, as `package.module:name`; for an instance, where its class is."""
    plain = source.func if isinstance(source, functools.partial) else source
    if not hasattr(plain, "__qualname__"):
        plain = type(plain)
    return f"{plain.__module__}:{plain.__qualname__}"
