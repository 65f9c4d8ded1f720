"""The registry, against real metadata of distributions that are made for the test."""

import functools
import runpy
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lightning_core.errors import BrokenPlugin, InvalidComponent, UnknownComponent
from lightning_core.registry import ALIASES, SHIPS_IN, Component, Registry, load_object
from lightning_core.registry.ships_in import REQUIRES

if TYPE_CHECKING:
    from tests.registry.conftest import Site


class Algorithm(ABC):
    @abstractmethod
    def run(self) -> None: ...


class Search(Algorithm):
    def __init__(self, model: str = "small", beam_width: int = 2, *, store: object = None) -> None:
        if beam_width < 1:
            raise ValueError("beam_width has to be positive")
        self.model = model
        self.beam_width = beam_width
        self.store = store

    def run(self) -> None:
        raise NotImplementedError


class Tuned(Search):
    """Takes anything, and needs a model."""

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model)
        self.options = options


class Thing:
    """Not an algorithm."""


READY = Search("ready")


def make_search(beam_width: int = 5) -> Search:
    return Search("made", beam_width)


def make_thing() -> Thing:
    return Thing()


@pytest.fixture
def registry(site: "Site") -> Registry:
    site.distribution(
        "lightning-apo",
        "1.2",
        f"[lightning_core.algorithms]\napo = {__name__}:Search\nbaseline = {__name__}:Tuned\n",
    )
    site.distribution("somebodys", "0.1", f"[lightning_core.strategies]\nlocal = {__name__}:Search\n")
    return site.registry()


def test_components_are_listed_by_name_without_importing_them(site: "Site") -> None:
    site.distribution("zeta", "2.0", "[lightning_core.stores]\nslow = explodes:Store [extra]\n[other.group]\nx = y:z\n")
    site.distribution("alpha", "1.0", "[lightning_core.stores]\nquick = explodes:Store\n")
    site.module("explodes", "raise RuntimeError('imported')")
    assert site.registry().components("stores") == [
        Component("stores", "quick", "alpha", "1.0", "explodes:Store"),
        Component("stores", "slow", "zeta", "2.0", "explodes:Store"),
    ]
    assert "explodes" not in sys.modules


def test_an_installation_that_was_cut_short_is_still_listed(site: "Site") -> None:
    site.distribution("halfway", "1.0", "[lightning_core.stores]\nquick = explodes:Store\n")
    (site.folder / "halfway-1.0.dist-info" / "METADATA").write_text("")
    [component] = site.registry().components("stores")
    assert (component.name, component.origin) == ("quick", "an unknown distribution")


INSTALL_VERL = (
    "Install it from a checkout of Lightning Core that has it: "
    "pip install . ./plugins/lightning-{http,proxy,tokens,verl}"
)


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("algorithms", "apoo", "no algorithm named 'apoo'; installed: apo, baseline. Did you mean 'apo'?"),
        # `ppo` ships in a package that is not installed.
        ("algorithms", "appo", "no algorithm named 'appo'; installed: apo, baseline. Did you mean 'apo'?"),
        ("algorithms", "APOO", "no algorithm named 'APOO'; installed: apo, baseline. Did you mean 'apo'?"),
        ("strategies", "shmm", "no strategy named 'shmm'; installed: local. Did you mean 'shm'?"),  # an alias
        ("algorithms", "verl", f"'verl' is not installed; it ships in lightning-verl. {INSTALL_VERL}"),
        (
            "algorithms",
            "verll",
            "no algorithm named 'verll'; installed: apo, baseline. Did you mean 'verl'? "
            f"It ships in lightning-verl, which is not installed. {INSTALL_VERL}",
        ),
    ],
)
def test_unknown_name_says_what_is_installed_and_what_it_may_mean(
    registry: Registry, kind: Any, name: str, message: str
) -> None:
    with pytest.raises(UnknownComponent) as caught:
        registry.load(kind, name)
    assert str(caught.value) == message


def test_dotted_path_is_told_how_paths_are_written(registry: Registry) -> None:
    with pytest.raises(UnknownComponent, match=r"named 'pkg\.mod\.Search'; .*A path is written 'pkg\.mod:Search'"):
        registry.load("algorithms", "pkg.mod.Search")


def test_aliases_and_names_of_our_distributions_do_not_collide() -> None:
    for kind, aliases in ALIASES.items():
        assert not set(aliases) & set(SHIPS_IN.get(kind, {}))


def test_alias_loads_what_it_stands_for(registry: Registry) -> None:
    assert registry.load("strategies", "shm") is Search


def test_broken_plugin_says_whose_it_is_and_chains_the_cause(site: "Site") -> None:
    site.distribution("somebodys", "0.1", "[lightning_core.tracers]\nfancy = fancy_tracer:Fancy\n")
    site.module("fancy_tracer", "import a_module_that_is_not_there")
    with pytest.raises(BrokenPlugin) as caught:
        site.registry().load("tracers", "fancy")
    assert str(caught.value) == (
        "tracer 'fancy' of somebodys 0.1 (fancy_tracer:Fancy) cannot be loaded: module 'fancy_tracer' cannot be "
        "imported: ModuleNotFoundError: No module named 'a_module_that_is_not_there'"
    )
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize(
    ("spec", "model", "beam_width"),
    [
        (READY, "ready", 2),
        (Search, "small", 2),
        (make_search, "made", 5),
        (functools.partial(Search, beam_width=7), "small", 7),
        ("apo", "small", 2),
        ({"name": "apo", "beam_width": 3}, "small", 3),
        (f"{__name__}:Search", "small", 2),
        (f"{__name__}:READY", "ready", 2),
        ({"name": f"{__name__}:make_search", "beam_width": 4}, "made", 4),
    ],
)
def test_every_accepted_form_gives_the_component(registry: Registry, spec: Any, model: str, beam_width: int) -> None:
    built = registry.build("algorithms", spec, expected=Algorithm)
    assert isinstance(built, Search)
    assert (built.model, built.beam_width) == (model, beam_width)


def test_a_constructor_with_keyword_arguments_takes_any_option_but_no_unnamed_default(registry: Registry) -> None:
    spec = {"name": "baseline", "anything": 1}
    built = registry.build("algorithms", spec, expected=Tuned, defaults={"model": "large", "store": object()})
    assert built.model == "large"
    assert built.options == {"anything": 1}


def test_unknown_option_names_the_nearest_and_all(registry: Registry) -> None:
    with pytest.raises(InvalidComponent) as caught:
        registry.build("algorithms", {"name": "apo", "beam_widht": 3}, expected=Algorithm)
    assert str(caught.value) == (
        "algorithm 'apo' has no option 'beam_widht'; it takes: model, beam_width, store. Did you mean 'beam_width'?"
    )


def test_missing_option_is_named(registry: Registry) -> None:
    with pytest.raises(InvalidComponent, match=r"algorithm 'baseline' needs the option 'model'; it takes: model"):
        registry.build("algorithms", "baseline", expected=Algorithm)


def test_what_a_constructor_raises_is_let_through(registry: Registry) -> None:
    with pytest.raises(ValueError, match="beam_width has to be positive"):
        registry.build("algorithms", {"name": "apo", "beam_width": 0}, expected=Algorithm)


def test_ready_instance_takes_no_options(registry: Registry) -> None:
    with pytest.raises(InvalidComponent, match=r"is a ready Search and takes no options; got 'model'"):
        registry.build("algorithms", {"name": f"{__name__}:READY", "model": "x"}, expected=Algorithm)


@pytest.mark.parametrize("spec", [Thing, f"{__name__}:Thing"])
def test_class_of_another_kind_is_refused_before_it_is_called(registry: Registry, spec: object) -> None:
    with pytest.raises(
        InvalidComponent, match=r"Thing' is the class Thing; it has to be an instance or a subclass of Algorithm"
    ):
        registry.build("algorithms", spec, expected=Algorithm)


def test_function_that_returns_something_else_is_refused(registry: Registry) -> None:
    with pytest.raises(InvalidComponent, match=r"make_thing' gave a Thing, which is not an instance of Algorithm"):
        registry.build("algorithms", make_thing, expected=Algorithm)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (None, "None"),
        (3, "3"),
        (Thing(), "a Thing"),
        ({"beam_width": 2}, r"a mapping without a string under 'name' \(its keys: 'beam_width'\)"),
        ({"name": 3}, r"a mapping without a string under 'name' \(its keys: 'name'\)"),
        ({}, r"a mapping without a string under 'name' \(its keys: none\)"),
    ],
)
def test_anything_else_is_told_what_is_accepted(registry: Registry, spec: object, problem: str) -> None:
    accepted = (
        r"accepted are an instance or a class of Algorithm, an installed name \(apo, baseline\), "
        r"'package\.module:attribute', and \{'name': \.\.\., option: value\}"
    )
    with pytest.raises(InvalidComponent, match=f"no algorithm can be made from {problem}; {accepted}"):
        registry.build("algorithms", spec, expected=Algorithm)


@pytest.mark.parametrize("path", ["", "agent", "agent:", ":solve", "agent:a b", "agent:a:b", "./agent:solve", "a..b:c"])
def test_malformed_path_says_the_form(path: str) -> None:
    with pytest.raises(InvalidComponent, match=r"does not name an object; the form is 'package\.module:attribute'"):
        load_object(path)


@pytest.mark.parametrize("path", ["not_there:solve", "not_there.agent:solve"])
def test_missing_module_is_told_from_one_that_misses_another(site: "Site", path: str) -> None:
    with pytest.raises(
        UnknownComponent, match=rf"no module 'not_there', which '{path}' names; is it installed, or its "
    ):
        load_object(path)


@pytest.mark.parametrize("problem", ["import not_there", "1 / 0", "def", "raise SystemExit('bye')"])
def test_module_that_fails_to_import_chains_the_cause(site: "Site", problem: str) -> None:
    site.module("broken_agent", problem)
    with pytest.raises(BrokenPlugin, match=r"module 'broken_agent' cannot be imported: \w+(Error|Exit): ") as caught:
        load_object("broken_agent:solve")
    assert isinstance(caught.value.__cause__, ImportError | ZeroDivisionError | SyntaxError | SystemExit)


def test_missing_attribute_names_the_nearest(site: "Site") -> None:
    site.module("agent_module", "class Agent:\n    solve = 1\n")
    with pytest.raises(UnknownComponent, match=r"module 'agent_module' has no 'Agnet'.*\. Did you mean 'Agent'\?"):
        load_object("agent_module:Agnet")
    with pytest.raises(UnknownComponent, match=r"'Agent' has no 'sovle'.*\. Did you mean 'solve'\?"):
        load_object("agent_module:Agent.sovle")


def test_attribute_whose_lazy_import_fails_chains_the_cause(site: "Site") -> None:
    site.module("lazy_agent", "def __getattr__(name):\n    import not_there\n")
    with pytest.raises(BrokenPlugin, match=r"'solve' of module 'lazy_agent' cannot be imported: ModuleNotFoundError"):
        load_object("lazy_agent:solve")


def test_what_ships_in_which_plugin_is_what_the_plugins_declare() -> None:
    declared = runpy.run_path(str(Path(__file__).resolve().parents[2] / ".ci" / "ships_in.py"))
    assert declared["ships_in"]() == SHIPS_IN, "run: make ships-in"
    assert declared["requires"]() == REQUIRES, "run: make ships-in"
