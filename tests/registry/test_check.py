"""What a look at every component finds."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.registry.conftest import Site


def test_each_component_is_imported_and_those_that_cannot_be_are_told_apart(site: "Site") -> None:
    site.distribution(
        "somebodys",
        "0.1",
        "[lightning_core.stores]\nexits = exits_at_once:S\ngood = good_store:S\nraises = raises_at_once:S\n"
        "unwanted = unwanted_store:S\n",
    )
    site.distribution("ahead", "2.0", "[lightning_core.stores]\nlater = later_store:S\n", requires=["lightning-core>9"])
    site.module("exits_at_once", "raise SystemExit('bye')")
    site.module("good_store", "class S: ...")
    site.module("raises_at_once", "raise OSError('no disk')")
    site.module("unwanted_store", "class S: ...")
    site.module("later_store", "class S: ...")
    components = site.registry(blocked=["unwanted"]).check()
    assert {each.name: each.state for each in components} == {
        "exits": "broken",
        "good": "ok",
        "later": "incompatible",
        "raises": "broken",
        "unwanted": "blocked",
    }
    problems = {each.name: each.problem for each in components}
    assert problems["good"] is None
    assert problems["raises"] == (
        "store 'raises' of somebodys 0.1 (raises_at_once:S) cannot be loaded: module 'raises_at_once' cannot be "
        "imported: OSError: no disk"
    )
    assert not {"unwanted_store", "later_store"} & set(sys.modules)
