"""The registry: which components there are, and how to get one."""

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from lightning_core.errors import BrokenPlugin, InvalidComponent, InvalidOptions, RegistryError, UnknownComponent
from lightning_core.registry.inventory import (
    ALIASES,
    KINDS,
    MEANT,
    SINGULAR,
    Component,
    Kind,
    installed_entry_points,
    take_inventory,
)
from lightning_core.registry.options import Options, did_you_mean, nearest
from lightning_core.registry.ships_in import REQUIRES, SHIPS_IN

T = TypeVar("T")

Spec: TypeAlias = T | type[T] | Callable[..., T] | str | Mapping[str, Any]
"""A component, in any accepted form: an instance, a class or a factory, an installed name or an import path, or a
mapping with its `name` and options."""

THIS_PROCESS = "this process"
"""Stands where a component of an installed distribution names the distribution."""


@dataclass(frozen=True, eq=False)
class Registration:
    """A component that a registry knows until `remove`, or until the end of a `with` block."""

    component: Component
    """What is known of it."""
    target: object
    """The component itself: a class, a function that returns an instance, or an instance."""
    _forget: "Callable[[Registration], None]"

    def remove(self) -> None:
        """Make the registry forget the component. What was built from it stays. Idempotent."""
        self._forget(self)

    def __enter__(self) -> Component:
        return self.component

    def __exit__(self, *error: object) -> None:
        self.remove()


_NO_DEFAULTS: Mapping[str, Any] = MappingProxyType({})


class Registry:
    """The components of one set of entry points, and those that this process registers by itself.

    Listing reads metadata only; a component's module is imported when the component is loaded or built. What is wrong
    with one (see `State`) concerns only a caller that asks for it by its name.

    Args:
        entry_points: What to read; groups that are not ours are ignored. None for everything that is installed,
            which is read once, when it is first needed.
    """

    def __init__(self, entry_points: Iterable[EntryPoint] | None = None) -> None:
        self._entry_points = None if entry_points is None else tuple(entry_points)
        self._registrations: list[Registration] = []

    def components(self, kind: Kind) -> list[Component]:
        """List what there is of one kind, sorted by name and distribution. Imports nothing.

        Duplicate ones are there, and say so.
        """
        registered = self._own(kind)
        listed = [each for each in self._installed[kind] if each.name not in registered]
        return sorted([*listed, *registered.values()], key=lambda each: (each.name, each.distribution))

    def inventory(self) -> list[Component]:
        """List what is installed of all kinds. Imports nothing."""
        return [component for kind in KINDS for component in self._installed[kind]]

    def check(self) -> list[Component]:
        """Import what is installed and `ok` by its metadata, and say of each component how it stands."""
        checked = []
        for component in self.inventory():
            if component.state == "ok":
                try:
                    self.load_component(component)
                except RegistryError as exc:
                    component = replace(component, state="broken", problem=str(exc))
            checked.append(component)
        return checked

    def load(self, kind: Kind, name: str) -> Any:
        """Import a component and return what its entry point names: a class, a factory or a ready instance.

        Raises:
            UnknownComponent: No installed distribution has this name.
            BrokenPlugin: The component's module cannot be imported or does not have the object, or several
                distributions have the name.
        """
        return self.load_component(self._named(kind, name))

    def load_component(self, component: Component) -> Any:
        """Import one of the listed components.

        Raises:
            BrokenPlugin: It cannot be imported, or there is a reason not to (see `State`).
        """
        registration = next((each for each in self._registrations if each.component is component), None)
        if registration is not None:
            return registration.target
        if component.state != "ok":
            raise BrokenPlugin(component.problem)
        try:
            return load_object(component.value)
        except RegistryError as exc:
            raise BrokenPlugin(f"{component} ({component.value}) cannot be loaded: {exc}") from (exc.__cause__ or exc)

    def register(self, kind: Kind, name: str, component: object) -> Registration:
        """Make a component known in this process by a name: for tests and notebooks.

        It is known at once, until the returned registration is removed; a `with` block does that at its end. It goes
        before what is installed under the same name, and before what was registered earlier.

            with default_registry().register("algorithms", "mine", MyAlgorithm):
                Trainer(algorithm="mine")

        Args:
            kind: What it is for.
            name: What to ask for it by.
            component: A class, a function that returns an instance, or an instance.

        Raises:
            UnknownComponent: There is no such kind.
            InvalidComponent: It could not be asked for by this name.
        """
        if kind not in KINDS:
            raise UnknownComponent(
                f"no kind of component named {kind!r}; kinds: {', '.join(KINDS)}{did_you_mean(kind, KINDS)}"
            )
        if not name or ":" in name:
            raise InvalidComponent(f"{name!r} cannot be a component's name; it has to be a text without ':'")
        known_as = Component(kind, name, THIS_PROCESS, "", path_of(component))
        registration = Registration(known_as, component, self._forget)
        self._registrations.append(registration)
        return registration

    def build(
        self,
        kind: Kind,
        spec: object,
        *,
        expected: type[T],
        defaults: Mapping[str, Any] = _NO_DEFAULTS,
        unnamed: str | None = None,
    ) -> T:
        """Make a component from any accepted form of it.

        What the component's own constructor raises is let through.

        Args:
            kind: What the component is for.
            spec: An instance of `expected`, returned as it is; a subclass of it or a function that returns one;
                an installed name; `"package.module:attribute"`; or a mapping with either of these two under `name`,
                and options for the constructor under all other keys. As in 0.3, `name` may be called `type`, and the
                colon be a dot.
            expected: What the component has to be an instance of.
            defaults: Options for a constructor that has parameters of these names, where `spec` does not set them.
                What a constructor only takes as `**kwargs` is not passed.
            unnamed: The name that a mapping of options alone is for; None to refuse it.

        Raises:
            UnknownComponent: Nothing has the name or path.
            BrokenPlugin: It is there, and cannot be used; see `load`.
            InvalidComponent: It is not an `expected`, or `spec` has none of the accepted forms; `InvalidOptions` where
                options do not fit its signature.
        """
        if isinstance(spec, expected):
            return spec
        label, source, options = self._source(kind, spec, expected, unnamed)
        require_buildable(label, source, expected)
        if isinstance(source, expected):
            if options:
                got = ", ".join(map(repr, options))
                raise InvalidComponent(f"{label} is a ready {type(source).__name__} and takes no options; got {got}")
            return source
        takes = Options(source)
        if faults := takes.faults(label, options, supplied=defaults):
            raise InvalidOptions(label, faults)
        built = source(**{name: value for name, value in defaults.items() if name in takes.parameters} | options)
        if not isinstance(built, expected):
            raise InvalidComponent(f"{label} gave {in_words(built)}, which is not an instance of {expected.__name__}")
        return built

    @functools.cached_property
    def _installed(self) -> dict[Kind, list[Component]]:
        entry_points = installed_entry_points() if self._entry_points is None else self._entry_points
        return take_inventory(entry_points)

    def _own(self, kind: Kind) -> dict[str, Component]:
        """Return what this process registered, by name; of several with one name the newest."""
        return {each.component.name: each.component for each in self._registrations if each.component.kind == kind}

    def _named(self, kind: Kind, name: str) -> Component:
        registered = self._own(kind)
        wanted = ALIASES.get(kind, {}).get(name, name)
        if name in registered or wanted in registered:
            return registered.get(name) or registered[wanted]
        for each in self._installed[kind]:
            if each.name == wanted:
                return each
        raise UnknownComponent(self._unknown(kind, name, wanted))

    def _forget(self, registration: Registration) -> None:
        self._registrations = [each for each in self._registrations if each is not registration]

    def _source(self, kind: Kind, spec: object, expected: type, unnamed: str | None) -> tuple[str, Any, dict[str, Any]]:
        """Find what `spec` means: how to call it in a message, what is there, and the options for it."""
        options: dict[str, Any] = {}
        if isinstance(spec, str):
            name = spec
        elif isinstance(spec, Mapping):
            options = dict(spec)
            key = "name" if "name" in options or not isinstance(options.get("type"), str) else "type"
            name = options.pop(key, unnamed)
            if not isinstance(name, str):
                # keys only: a value may be a secret
                keys = ", ".join(map(repr, spec)) or "none"
                raise self._malformed(kind, expected, f"a mapping without a string under 'name' (its keys: {keys})")
        elif is_factory(spec):
            return f"{SINGULAR[kind]} {path_of(spec)!r}", spec, options
        else:
            raise self._malformed(kind, expected, in_words(spec))
        module, dot, attribute = name.rpartition(".")
        if dot and ":" not in name and all(each.name != name for each in self.components(kind)):
            name = f"{module}:{attribute}"
        source = load_object(name) if ":" in name else self.load(kind, name)
        return f"{SINGULAR[kind]} {name!r}", source, options

    def _malformed(self, kind: Kind, expected: type, problem: str) -> InvalidComponent:
        return InvalidComponent(
            f"no {SINGULAR[kind]} can be made from {problem}; accepted are an instance or a class of "
            f"{expected.__name__}, an installed name ({self._names(kind)}), 'package.module:attribute', "
            "and {'name': ..., option: value}"
        )

    def _unknown(self, kind: Kind, name: str, wanted: str) -> str:
        ships_in = SHIPS_IN.get(kind, {})
        if wanted in ships_in:
            return f"{wanted!r} is not installed; it ships in {ships_in[wanted]}. {how_to_install(ships_in[wanted])}"
        message = f"no {SINGULAR[kind]} named {name!r}; installed: {self._names(kind)}"
        module, _, attribute = name.rpartition(".")
        if module:
            return f"{message}. A path is written {module + ':' + attribute!r}"
        installed = [component.name for component in self.components(kind)]
        aliases = [alias for alias, target in ALIASES.get(kind, {}).items() if target in installed]
        guess = MEANT.get(kind, {}).get(wanted)
        guess = guess or nearest(wanted, [*installed, *aliases]) or nearest(wanted, ships_in)
        message += f". Did you mean {guess!r}?" if guess is not None else ""
        if guess is None or guess in installed or guess in aliases:
            return message
        return f"{message} It ships in {ships_in[guess]}, which is not installed. {how_to_install(ships_in[guess])}"

    def _names(self, kind: Kind) -> str:
        return ", ".join(dict.fromkeys(component.name for component in self.components(kind))) or "none"


@functools.cache
def default_registry() -> Registry:
    """Return the registry of everything that is installed; the same one for the whole process."""
    return Registry()


def how_to_install(distribution: str) -> str:
    """Say how to install one of our own distributions."""
    names = [each.removeprefix("lightning-") for each in (*REQUIRES.get(distribution, ()), distribution)]
    plugins = names[0] if len(names) == 1 else f"{{{','.join(names)}}}"
    return f"Install it from a checkout of Lightning Core that has it: pip install . ./plugins/lightning-{plugins}"


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
    package, dot, rest = module_name.partition(".")
    if package == "agentlightning":  # of a configuration that was written for 0.3
        module_name = f"lightning_core{dot}{rest}"
    if not all(part.isidentifier() for part in [*module_name.split("."), *attribute.split(".")]):
        raise InvalidComponent(f"{path!r} does not name an object; the form is 'package.module:attribute'")
    try:
        target: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as exc:
        if isinstance(exc, ModuleNotFoundError) and f"{module_name}.".startswith(f"{exc.name}."):
            raise UnknownComponent(
                f"no module {exc.name!r}, which {path!r} names; is it installed, or its folder on sys.path?"
            ) from exc
        raise BrokenPlugin(f"module {module_name!r} cannot be imported: {type(exc).__name__}: {exc}") from exc
    owner = f"module {module_name!r}"
    for part in attribute.split("."):
        try:
            target = getattr(target, part)
        except AttributeError as exc:
            names = [name for name in dir(target) if not name.startswith("_")]
            raise UnknownComponent(f"{owner} has no {part!r}, which {path!r} names{did_you_mean(part, names)}") from exc
        except Exception as exc:  # a module may import lazily, in its __getattr__
            raise BrokenPlugin(f"{part!r} of {owner} cannot be imported: {type(exc).__name__}: {exc}") from exc
        owner = repr(part)
    return target


def require_buildable(label: str, source: object, expected: type) -> None:
    """Refuse what is not an instance of `expected`, and cannot be called for one.

    Raises:
        InvalidComponent: When it is so. What a function returns is known only when it is called.
    """
    is_wrong_class = isinstance(source, type) and not issubclass(source, expected)
    if not isinstance(source, expected) and (is_wrong_class or not is_factory(source)):
        raise InvalidComponent(
            f"{label} is {in_words(source)}; it has to be an instance or a subclass of {expected.__name__}, "
            "or a function that returns an instance"
        )


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
