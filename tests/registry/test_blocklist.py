"""`AGL_PLUGINS_BLOCK`."""

import sys
from typing import TYPE_CHECKING

import pytest

from lightning_core.errors import UnknownComponent

if TYPE_CHECKING:
    from tests.registry.conftest import Site


@pytest.fixture
def offers(site: "Site") -> "Site":
    """Two distributions: one with a tracer and a store of one name, one with a store."""
    site.distribution(
        "big-house", "1.0", "[lightning_core.tracers]\nmongo = a:T\n[lightning_core.stores]\nmongo = a:S\n"
    )
    site.distribution("small-house", "2.0", "[lightning_core.stores]\nquick = b:S\n[lightning_core]\nwatch = b:hooks\n")
    return site


@pytest.mark.parametrize(
    ("entries", "left"),
    [
        ("", ["tracers:mongo", "stores:mongo", "stores:quick", "hooks:watch"]),
        ("mongo", ["stores:quick", "hooks:watch"]),
        ("stores:mongo", ["tracers:mongo", "stores:quick", "hooks:watch"]),
        ("small-house", ["tracers:mongo", "stores:mongo"]),
        ("Small_House", ["tracers:mongo", "stores:mongo"]),
        (" watch , stores:mongo,, ", ["tracers:mongo", "stores:quick"]),
    ],
)
def test_names_kinds_with_names_and_distributions_are_blocked(
    offers: "Site", monkeypatch: pytest.MonkeyPatch, entries: str, left: list[str]
) -> None:
    monkeypatch.setenv("AGL_PLUGINS_BLOCK", entries)
    registry = offers.registry()
    kinds = ("tracers", "stores", "hooks")
    assert [f"{each.kind}:{each.name}" for kind in kinds for each in registry.components(kind)] == left


def test_a_blocked_component_asked_for_by_name_says_what_blocks_it(
    offers: "Site", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGL_PLUGINS_BLOCK", "agentops,stores:mongo")
    with pytest.raises(UnknownComponent) as caught:
        offers.registry().load("stores", "mongo")
    assert str(caught.value) == (
        "store 'mongo' of big-house 1.0 is blocked by 'stores:mongo' in AGL_PLUGINS_BLOCK; take that out to use it"
    )
    assert "a" not in sys.modules
