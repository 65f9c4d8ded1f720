"""Components by name: what the installed distributions offer, found through entry points."""

import difflib
import functools
import importlib
import importlib.metadata
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args

from lightning_core.errors import BrokenPlugin, InvalidComponent, RegistryError, UnknownComponent

T = TypeVar("T")

Kind = Literal["algorithms", "stores", "tracers", "adapters", "runners", "strategies", "backends", "commands"]
"""What a component is for. The entry-point group of a kind is `lightning_core.<kind>`."""

KINDS: tuple[Kind, ...] = get_args(Kind)
"""All kinds, in the order in which they are listed."""

ALIASES: Mapping[Kind, Mapping[str, str]] = {"strategies": {"shm": "local", "cs": "processes"}}
"""Other names of a component, per kind: alias -> name."""

SHIPS_IN: Mapping[Kind, Mapping[str, str]] = {
    "algorithms": {
        "apo": "lightning-apo",
        "verl": "lightning-verl",
        "grpo": "lightning-verl",
        "ppo": "lightning-verl",
        "rloo": "lightning-verl",
    },
    "stores": {"sqlite": "lightning-sqlite", "mongo": "lightning-mongo"},
    "tracers": {"agentops": "lightning-agentops", "weave": "lightning-weave"},
    "backends": {"litellm": "lightning-litellm"},
}
"""Which of our own distributions has a component, per kind: name -> distribution."""

_GROUP_PREFIX = "lightning_core."
_NO_DEFAULTS: Mapping[str, Any] = MappingProxyType({})
_NAMED_PARAMETERS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


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


class Registry:
    """The components of one set of entry points.

    Listing reads metadata only; a component's module is imported when the component is loaded or built. Where two
    distributions declare the same name, the first by the distribution's name is taken.

    Args:
        entry_points: What to read; groups that are not ours are ignored. None for everything that is installed,
            which is read once, when it is first needed.
    """

    def __init__(self, entry_points: Iterable[EntryPoint] | None = None) -> None:
        self._entry_points = None if entry_points is None else tuple(entry_points)

    def components(self, kind: Kind) -> list[Component]:
        """List what is installed of one kind, sorted by name and distribution. Imports nothing.

        Raises:
            UnknownComponent: There is no such kind.
        """
        return list(self._of_kind(kind))

    def load(self, kind: Kind, name: str) -> Any:
        """Import a component and return what its entry point names: a class, a factory or a ready instance.

        Raises:
            UnknownComponent: No installed distribution has this name.
            BrokenPlugin: The component's module cannot be imported or does not have the object.
        """
        wanted = ALIASES.get(kind, {}).get(name, name)
        component = next((known for known in self._of_kind(kind) if known.name == wanted), None)
        if component is None:
            raise UnknownComponent(self._unknown(kind, name, wanted))
        try:
            return load_object(component.value)
        except RegistryError as exc:
            raise BrokenPlugin(
                f"{_SINGULAR[kind]} {wanted!r} of {component.distribution} {component.version} "
                f"({component.value}) cannot be loaded: {exc}"
            ) from (exc.__cause__ or exc)

    def build(self, kind: Kind, spec: object, *, expected: type[T], defaults: Mapping[str, Any] = _NO_DEFAULTS) -> T:
        """Make a component from any accepted form of it.

        What the component's own constructor raises is let through.

        Args:
            kind: What the component is for.
            spec: An instance of `expected`, returned as it is; a subclass of it or a function that returns one;
                an installed name; `"package.module:attribute"`; or a mapping with either of these two under `name`,
                and options for the constructor under all other keys.
            expected: What the component has to be an instance of.
            defaults: Options for a constructor that has parameters of these names, where `spec` does not set them.
                What a constructor only takes as `**kwargs` is not passed.

        Raises:
            UnknownComponent: Nothing has the name or path.
            BrokenPlugin: It is there, and cannot be imported.
            InvalidComponent: It is not an `expected`, it does not take an option, it misses a required one, or
                `spec` has none of the accepted forms.
        """
        if isinstance(spec, expected):
            return spec
        label, source, options = self._source(kind, spec, expected)
        if isinstance(source, expected):
            if options:
                raise InvalidComponent(
                    f"{label} is a ready {type(source).__name__} and takes no options; "
                    f"got {', '.join(map(repr, options))}"
                )
            return source
        if not _is_factory(source) or (isinstance(source, type) and not issubclass(source, expected)):
            raise InvalidComponent(
                f"{label} is {_in_words(source)}; it has to be an instance or a subclass of {expected.__name__}, "
                "or a function that returns an instance"
            )
        built = source(**_arguments(label, source, options, defaults))
        if not isinstance(built, expected):
            raise InvalidComponent(f"{label} gave {_in_words(built)}, which is no {expected.__name__}")
        return built

    @functools.cached_property
    def _components(self) -> dict[Kind, list[Component]]:
        entry_points = _installed_entry_points() if self._entry_points is None else self._entry_points
        origin = functools.cache(_distribution_of)  # reads a whole METADATA file
        found: dict[Kind, list[Component]] = {kind: [] for kind in KINDS}
        for kind in KINDS:
            for entry_point in entry_points:
                if entry_point.group == _GROUP_PREFIX + kind:
                    distribution, version = origin(entry_point.dist)
                    value = entry_point.value.partition("[")[0].strip()
                    found[kind].append(Component(kind, entry_point.name, distribution, version, value))
            found[kind].sort(key=lambda component: (component.name, component.distribution))
        return found

    def _of_kind(self, kind: Kind) -> list[Component]:
        if kind not in self._components:
            raise UnknownComponent(
                f"no kind of component named {kind!r}; kinds: {', '.join(KINDS)}{did_you_mean(kind, KINDS)}"
            )
        return self._components[kind]

    def _source(self, kind: Kind, spec: object, expected: type) -> tuple[str, Any, Mapping[str, Any]]:
        """Find what `spec` means: how to call it in a message, what is there, and the options for it."""
        options: dict[str, Any] = {}
        if isinstance(spec, str):
            name = spec
        elif isinstance(spec, Mapping):
            options = dict(spec)
            name = options.pop("name", None)
            if not isinstance(name, str):
                # keys only: a value may be a secret
                keys = ", ".join(map(repr, spec)) or "none"
                raise self._malformed(kind, expected, f"a mapping without a string under 'name' (its keys: {keys})")
        elif _is_factory(spec):
            return f"{_SINGULAR[kind]} {_describe(spec)!r}", spec, options
        else:
            raise self._malformed(kind, expected, _in_words(spec))
        source = load_object(name) if ":" in name else self.load(kind, name)
        return f"{_SINGULAR[kind]} {name!r}", source, options

    def _malformed(self, kind: Kind, expected: type, problem: str) -> InvalidComponent:
        return InvalidComponent(
            f"no {_SINGULAR[kind]} can be made from {problem}; accepted are an instance or a class of "
            f"{expected.__name__}, an installed name ({self._names(kind)}), 'package.module:attribute', "
            "and {'name': ..., option: value}"
        )

    def _unknown(self, kind: Kind, name: str, wanted: str) -> str:
        ships_in = SHIPS_IN.get(kind, {})
        if wanted in ships_in:
            return f"{wanted!r} is not installed; it ships in {ships_in[wanted]}. {_how_to_install(ships_in[wanted])}"
        alias = "" if name == wanted else f" (another name of {wanted!r})"
        message = f"no {_SINGULAR[kind]} named {name!r}{alias}; installed: {self._names(kind)}"
        module, _, attribute = name.rpartition(".")
        if module:
            return f"{message}. A path is written {module + ':' + attribute!r}"
        installed = [component.name for component in self._of_kind(kind)]
        message += did_you_mean(wanted, [*installed, *ships_in])
        guess = nearest(wanted, [*installed, *ships_in])
        if guess is None or guess in installed:
            return message
        return f"{message} It ships in {ships_in[guess]}, which is not installed. {_how_to_install(ships_in[guess])}"

    def _names(self, kind: Kind) -> str:
        return ", ".join(dict.fromkeys(component.name for component in self._of_kind(kind))) or "none"


@functools.cache
def default_registry() -> Registry:
    """Return the registry of everything that is installed; the same one for the whole process."""
    return Registry()


def load_object(path: str) -> Any:
    """Import what `"package.module:attribute"` names; the attribute may be dotted.

    Raises:
        InvalidComponent: `path` is not of that form.
        UnknownComponent: There is no such module, or the module has no such attribute.
        BrokenPlugin: The module is there, and importing it raised; the cause is chained.
    """
    module_name, _, attribute = path.partition(":")
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


def nearest(name: object, names: Iterable[str]) -> str | None:
    """Return the one of `names` that `name` was probably meant to be; None when none is like it."""
    matches = difflib.get_close_matches(str(name), list(names), n=1)
    return matches[0] if matches else None


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """Return the end of an error message, `. Did you mean 'x'?`; empty when nothing is near."""
    guess = nearest(name, names)
    return "" if guess is None else f". Did you mean {guess!r}?"


_SINGULAR: Mapping[Kind, str] = {
    "algorithms": "algorithm",
    "stores": "store",
    "tracers": "tracer",
    "adapters": "adapter",
    "runners": "runner",
    "strategies": "strategy",
    "backends": "backend",
    "commands": "command",
}


def _installed_entry_points() -> list[EntryPoint]:
    installed = importlib.metadata.entry_points()
    return [entry_point for kind in KINDS for entry_point in installed.select(group=_GROUP_PREFIX + kind)]


def _distribution_of(distribution: importlib.metadata.Distribution | None) -> tuple[str, str]:
    return ("an unknown distribution", "") if distribution is None else (distribution.name, distribution.version)


def _import_module(module_name: str, path: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except Exception as exc:
        if isinstance(exc, ModuleNotFoundError) and f"{module_name}.".startswith(f"{exc.name}."):
            raise UnknownComponent(
                f"no module {exc.name!r}, which {path!r} names; is it installed, or its folder on sys.path?"
            ) from exc
        raise BrokenPlugin(f"module {module_name!r} cannot be imported: {type(exc).__name__}: {exc}") from exc


def _is_factory(source: object) -> bool:
    return isinstance(source, type | functools.partial) or inspect.isroutine(source)


def _in_words(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return repr(value) if value is None or isinstance(value, bool | int | float) else f"a {type(value).__name__}"


def _describe(factory: Any) -> str:
    plain = factory.func if isinstance(factory, functools.partial) else factory
    return f"{plain.__module__}:{plain.__qualname__}"


def _arguments(
    label: str, factory: Callable[..., Any], options: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Check options against what `factory` takes, and add the defaults that it takes."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:  # some of those written in C do not tell
        return dict(options)
    named = {parameter.name: parameter for parameter in parameters if parameter.kind in _NAMED_PARAMETERS}
    takes_anything = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    takes = f"it takes: {', '.join(named) or 'none'}"
    for option in options:
        if option not in named and not takes_anything:
            raise InvalidComponent(f"{label} has no option {option!r}; {takes}{did_you_mean(option, named)}")
    arguments = {name: value for name, value in defaults.items() if name in named} | dict(options)
    missing = [name for name, parameter in named.items() if _is_required(parameter) and name not in arguments]
    if missing:
        raise InvalidComponent(f"{label} needs the option {', '.join(map(repr, missing))}; {takes}")
    return arguments


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is inspect.Parameter.empty


def _how_to_install(distribution: str) -> str:
    return f"Install it from a checkout of Lightning Core: pip install ./plugins/{distribution}"
