"""The registry: which components there are, and how to get one."""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

from lightning_core.errors import BrokenPlugin, InvalidComponent, RegistryError, UnknownComponent
from lightning_core.registry.building import (
    ALIASES,
    KINDS,
    SINGULAR,
    Component,
    Kind,
    build_from,
    in_words,
    is_factory,
    load_object,
    path_of,
)
from lightning_core.registry.inventory import Blocklist, installed_entry_points, take_inventory
from lightning_core.registry.options import did_you_mean, nearest
from lightning_core.registry.ships_in import SHIPS_IN

THIS_PROCESS = "this process"
"""Stands where a component of an installed distribution names the distribution."""


class Registration:
    """A component that a registry knows until `remove`, or until the end of a `with` block.

    Args:
        component: What is known of it.
        target: The component itself: a class, a function that returns an instance, or an instance.
        forget: Makes the registry forget it.
    """

    def __init__(self, component: Component, target: object, forget: "Callable[[Registration], None]") -> None:
        self.component = component
        self.target = target
        self._forget = forget

    def remove(self) -> None:
        """Make the registry forget the component. What was built from it stays. Twice is as once."""
        self._forget(self)

    def __enter__(self) -> Component:
        return self.component

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()


T = TypeVar("T")

_NO_DEFAULTS: Mapping[str, Any] = MappingProxyType({})


def _accept_anything(component: Component, loaded: object) -> None:
    """Find nothing wrong."""


class Registry:
    """The components of one set of entry points, and those that this process registers by itself.

    Listing reads metadata only; a component's module is imported when the component is loaded or built. What is wrong
    with one (see `State`) concerns nobody but who asks for it by its name.

    Args:
        entry_points: What to read; groups that are not ours are ignored. None for everything that is installed,
            which is read once, when it is first needed.
        blocked: What to treat as not installed, entries as in `AGL_PLUGINS_BLOCK`; None for those of that variable,
            which is read at the same time.
    """

    def __init__(
        self, entry_points: Iterable[EntryPoint] | None = None, *, blocked: Iterable[str] | None = None
    ) -> None:
        self._entry_points = None if entry_points is None else tuple(entry_points)
        self._blocked = None if blocked is None else tuple(blocked)
        self._registrations: list[Registration] = []

    def components(self, kind: Kind) -> list[Component]:
        """List what there is of one kind, sorted by name and distribution. Imports nothing.

        Blocked components are left out; duplicate and incompatible ones are there, and say so.

        Raises:
            UnknownComponent: There is no such kind.
        """
        installed = self._of_kind(kind)
        own = self._own(kind)
        listed = [each for each in installed if each.state != "blocked" and each.name not in own]
        return sorted([*listed, *own.values()], key=lambda each: (each.name, each.distribution))

    def inventory(self) -> list[Component]:
        """List what is installed of all kinds, blocked components too. Imports nothing."""
        return [component for kind in KINDS for component in self._of_kind(kind)]

    def check(self, verify: Callable[[Component, Any], None] = _accept_anything) -> list[Component]:
        """Import what is installed, and say of each component how it stands.

        Only what is `ok` by its metadata is imported. There is no time limit on an import.

        Args:
            verify: Is called with each component and what was imported for it; raises a `RegistryError` where that
                is not what it should be.
        """
        return [self._checked(component, verify) for component in self.inventory()]

    def load(self, kind: Kind, name: str) -> Any:
        """Import a component and return what its entry point names: a class, a factory or a ready instance.

        Raises:
            UnknownComponent: No installed distribution has this name, or it is blocked.
            BrokenPlugin: The component's module cannot be imported or does not have the object, or its distribution
                does not fit the core, or several distributions have the name.
        """
        return self.load_component(self._named(kind, name))

    def load_component(self, component: Component) -> Any:
        """Import one of the listed components.

        Raises:
            BrokenPlugin: It cannot be imported, or there is a reason not to (see `State`).
        """
        own = next((each for each in self._registrations if each.component is component), None)
        if own is not None:
            return own.target
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
            InvalidComponent: Nobody could ask for it by this name.
        """
        self._require_kind(kind)
        if not name or ":" in name:
            raise InvalidComponent(f"{name!r} cannot be a component's name; it has to be a text without ':'")
        known_as = Component(kind, name, THIS_PROCESS, "", path_of(component))
        registration = Registration(known_as, component, self._forget)
        self._registrations.append(registration)
        return registration

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
            UnknownComponent: Nothing has the name or path, or it is blocked.
            BrokenPlugin: It is there, and cannot be used; see `load`.
            InvalidComponent: It is not an `expected`, or `spec` has none of the accepted forms; `InvalidOptions` where
                options do not fit its signature.
        """
        if isinstance(spec, expected):
            return spec
        label, source, options = self._source(kind, spec, expected)
        return build_from(label, source, expected, options=options, defaults=defaults)

    @functools.cached_property
    def _installed(self) -> dict[Kind, list[Component]]:
        entry_points = installed_entry_points() if self._entry_points is None else self._entry_points
        return take_inventory(entry_points, Blocklist(self._blocked))

    def _of_kind(self, kind: Kind) -> list[Component]:
        self._require_kind(kind)
        return self._installed[kind]

    def _own(self, kind: Kind) -> dict[str, Component]:
        """Return what this process registered, by name; of several with one name the newest."""
        return {each.component.name: each.component for each in self._registrations if each.component.kind == kind}

    def _require_kind(self, kind: Kind) -> None:
        if kind not in KINDS:
            raise UnknownComponent(
                f"no kind of component named {kind!r}; kinds: {', '.join(KINDS)}{did_you_mean(kind, KINDS)}"
            )

    def _named(self, kind: Kind, name: str) -> Component:
        wanted = ALIASES.get(kind, {}).get(name, name)
        own = self._own(kind)
        if name in own or wanted in own:
            return own.get(name) or own[wanted]
        by_state = {each.state: each for each in reversed(self._of_kind(kind)) if each.name == wanted}
        if "blocked" in by_state and len(by_state) == 1:
            raise UnknownComponent(by_state["blocked"].problem)
        for state in ("ok", "duplicate", "incompatible"):
            if state in by_state:
                return by_state[state]
        raise UnknownComponent(self._unknown(kind, name, wanted))

    def _checked(self, component: Component, verify: Callable[[Component, Any], None]) -> Component:
        if component.state != "ok":
            return component
        try:
            verify(component, self.load_component(component))
        except RegistryError as exc:
            return replace(component, state="broken", problem=str(exc))
        return component

    def _forget(self, registration: Registration) -> None:
        self._registrations = [each for each in self._registrations if each is not registration]

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
        elif is_factory(spec):
            return f"{SINGULAR[kind]} {path_of(spec)!r}", spec, options
        else:
            raise self._malformed(kind, expected, in_words(spec))
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
            which = f"{wanted!r}" if name == wanted else f"{name!r} is another name of {wanted!r}, which"
            return f"{which} is not installed; it ships in {ships_in[wanted]}. {_how_to_install(ships_in[wanted])}"
        alias = "" if name == wanted else f" (another name of {wanted!r})"
        message = f"no {SINGULAR[kind]} named {name!r}{alias}; installed: {self._names(kind)}"
        module, _, attribute = name.rpartition(".")
        if module:
            return f"{message}. A path is written {module + ':' + attribute!r}"
        installed = [component.name for component in self.components(kind)]
        aliases = [alias for alias, target in ALIASES.get(kind, {}).items() if target in installed]
        guess = nearest(wanted, [*installed, *aliases]) or nearest(wanted, ships_in)
        message += f". Did you mean {guess!r}?" if guess is not None else ""
        if guess is None or guess in installed or guess in aliases:
            return message
        return f"{message} It ships in {ships_in[guess]}, which is not installed. {_how_to_install(ships_in[guess])}"

    def _names(self, kind: Kind) -> str:
        return ", ".join(dict.fromkeys(component.name for component in self.components(kind))) or "none"


@functools.cache
def default_registry() -> Registry:
    """Return the registry of everything that is installed; the same one for the whole process."""
    return Registry()


def _how_to_install(distribution: str) -> str:
    return f"Install it from a checkout of Lightning Core that has it: pip install . ./plugins/{distribution}"
