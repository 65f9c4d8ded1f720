"""docs/migrating.md says the truth about every name of agentlightning 0.3's root package."""

import importlib
import re
from pathlib import Path

import pytest

import lightning_core
from lightning_core.compat import SUPPLIED

HERE = Path(__file__).parent
TEXT = (HERE.parents[1] / "docs" / "migrating.md").read_text(encoding="utf-8")
TABLE = TEXT.partition("## Every name")[2]
ROWS = {name: (status, note) for name, status, note in re.findall(r"^\| `(\w+)` \| (\w+) \| (.*) \|$", TABLE, re.M)}
NAMES = (HERE / "agentlightning_0_3_names.txt").read_text(encoding="utf-8").split()


def test_every_name_of_the_old_root_package_stands_in_the_table_once():
    listed = re.findall(r"^\| `(\w+)` \|", TABLE, re.M)
    assert sorted(listed) == sorted(NAMES)


def test_every_status_is_one_of_the_three():
    assert {status for status, _ in ROWS.values()} <= {"kept", "moved", "dropped"}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_where_the_table_says(name: str):
    status, note = ROWS[name]
    if name in SUPPLIED:
        assert status == "kept"
    else:
        assert hasattr(lightning_core, name) == (status == "kept")
    if status == "moved" or (name in SUPPLIED and note.startswith("`lightning_")):
        place = re.match(r"`(lightning_\w+(?:\.\w+)*)`", note)
        assert place is not None, f"{name} has moved, but the note does not begin with where to"
        package, _, attribute = place.group(1).partition(".")
        if package == "lightning_verl":  # it has an environment of its own
            stub = HERE.parents[1] / "plugins" / "lightning-verl" / package / "__init__.pyi"
            assert f" {attribute} as {attribute}" in stub.read_text(encoding="utf-8")
        else:
            _resolve(place.group(1))
    if status == "dropped":
        assert note, f"{name} was dropped, but the note does not say what to use instead"


def _resolve(path: str) -> object:
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"{path} does not exist")
