"""Two distributions that offer a component of the same name."""

from typing import TYPE_CHECKING

import pytest

from lightning_core.errors import BrokenPlugin
from lightning_core.registry import load_object

if TYPE_CHECKING:
    from tests.registry.conftest import Site

PROBLEM = (
    "store 'quick' is offered by alpha 1.0 (alpha_stores:Quick) and by beta 2.0 (beta_stores:Quick); "
    "give its path instead of its name, as in 'beta_stores:Quick', or uninstall one of them"
)


@pytest.fixture
def rivals(site: "Site") -> "Site":
    """Two distributions, each with a store `quick` and one of its own."""
    for name, version in (("alpha", "1.0"), ("beta", "2.0")):
        site.distribution(
            name, version, f"[lightning_core.stores]\nquick = {name}_stores:Quick\n{name} = {name}_stores:Own\n"
        )
        site.module(f"{name}_stores", "class Quick: ...\nclass Own: ...\n")
    return site


def test_a_duplicate_name_names_both_distributions_and_how_to_choose(rivals: "Site") -> None:
    with pytest.raises(BrokenPlugin) as caught:
        rivals.registry().load("stores", "quick")
    assert str(caught.value) == PROBLEM


def test_duplicates_are_listed_as_such_and_concern_no_other_component(rivals: "Site") -> None:
    registry = rivals.registry()
    assert [(each.name, each.distribution, each.state) for each in registry.components("stores")] == [
        ("alpha", "alpha", "ok"),
        ("beta", "beta", "ok"),
        ("quick", "alpha", "duplicate"),
        ("quick", "beta", "duplicate"),
    ]
    assert registry.load("stores", "beta").__module__ == "beta_stores"


def test_a_path_chooses_as_the_message_tells(rivals: "Site") -> None:
    for name in ("alpha", "beta"):
        quick = load_object(f"{name}_stores:Quick")
        assert isinstance(rivals.registry().build("stores", f"{name}_stores:Quick", expected=quick), quick)


def test_a_distribution_that_is_found_twice_is_one(site: "Site") -> None:
    site.distribution("alpha", "1.0", "[lightning_core.stores]\nquick = alpha_stores:Quick\n")
    (site.folder / "alpha-1.0.egg-info").mkdir()
    for name, copy in (("METADATA", "PKG-INFO"), ("entry_points.txt", "entry_points.txt")):
        text = (site.folder / "alpha-1.0.dist-info" / name).read_text()
        (site.folder / "alpha-1.0.egg-info" / copy).write_text(text)
    assert [each.state for each in site.registry().components("stores")] == ["ok"]


def test_hook_plugins_share_a_name_because_nobody_asks_for_them_by_it(site: "Site") -> None:
    for name in ("alpha", "beta"):
        site.distribution(name, "1.0", f"[lightning_core]\nprogress = {name}_hooks:plugin\n")
    assert [each.state for each in site.registry().components("hooks")] == ["ok", "ok"]
