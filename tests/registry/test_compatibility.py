"""Plugins that require another version of the core."""

import importlib.metadata
import sys
from typing import TYPE_CHECKING

import pytest

from lightning_core.errors import BrokenPlugin
from lightning_core.registry.inventory import misfit

if TYPE_CHECKING:
    from tests.registry.conftest import Site

INSTALLED = importlib.metadata.version("lightning-core")


@pytest.fixture
def ahead(site: "Site") -> "Site":
    """A plugin that was made for a core of the future."""
    site.distribution(
        "ahead", "7.0", "[lightning_core.tracers]\nfancy = fancy_tracer:Fancy\n", requires=["lightning-core>=99,<100"]
    )
    site.module("fancy_tracer", "class Fanci: ...\n")
    return site


def test_a_plugin_for_another_core_names_both_versions_and_is_not_imported(ahead: "Site") -> None:
    with pytest.raises(BrokenPlugin) as caught:
        ahead.registry(blocked=()).load("tracers", "fancy")
    assert str(caught.value) == (
        f"tracer 'fancy' of ahead 7.0 requires lightning-core<100,>=99, but lightning-core {INSTALLED} is installed; "
        "install versions that fit each other"
    )
    assert "fancy_tracer" not in sys.modules


@pytest.mark.parametrize(
    "requirement",
    [
        f"lightning-core=={INSTALLED}",
        "lightning-core<2,>=1.0.0.dev0",
        "Lightning_Core>=1.0.0.dev0",
        "lightning-core",
        "lightning-core[testing]>=99; extra == 'dev'",
        "lightning-core>=99; python_version < '3'",
        "lightning-core-extras>=99",
        "lightning-corex>=99",
        "numpy>=99",
    ],
)
def test_a_requirement_that_holds_or_is_none_on_the_core_fits(requirement: str) -> None:
    assert misfit([requirement]) is None


@pytest.mark.parametrize(
    ("requirement", "problem"),
    [
        ("lightning.core >=99", f"requires lightning-core>=99, but lightning-core {INSTALLED} is installed"),
        ("lightning-core[testing]~=0.5", f"requires lightning-core~=0.5, but lightning-core {INSTALLED} is installed"),
        ("lightning-core>=banana", "requires 'lightning-core>=banana', which cannot be read ("),
    ],
)
def test_a_requirement_that_does_not_hold_says_both_versions(requirement: str, problem: str) -> None:
    assert (misfit(["numpy", requirement]) or "").startswith(problem)
