"""docs/migrating.md says the truth about the names, modules, methods and parameters of agentlightning 0.3."""

import fnmatch
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from lightning_legacy.modules import PLACES

import lightning_core
from lightning_core.former import DROPPED, SUPPLIED
from lightning_core.registry.options import deprecated_options

HERE = Path(__file__).parent
TEXT = (HERE.parents[1] / "docs" / "migrating.md").read_text(encoding="utf-8")
TABLE = TEXT.partition("## Every name")[2]
SAME = re.findall(r"`(\w+)`", TABLE.partition("are the same:")[2].partition(".\n")[0])
ROWS = {
    name: note
    for names, note in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (.*) \|$", TABLE, re.M)
    for name in re.findall(r"`(\w+)`", names)
}
NAMES = (HERE / "agentlightning_0_3_names.txt").read_text(encoding="utf-8").split()


def test_every_name_of_the_old_root_package_is_on_the_page_once():
    assert sorted([*SAME, *ROWS]) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_where_the_page_says(name: str):
    note = ROWS.get(name, "")
    assert note.startswith("dropped") == (name in DROPPED)
    if name in DROPPED:
        with pytest.raises(ImportError, match=f"^{name} is not here, .*Trainer.fit"):
            getattr(lightning_core, name)
        return
    has_moved = note.startswith("moved to ")
    if name in SUPPLIED:
        assert not has_moved
    else:
        assert hasattr(lightning_core, name) != has_moved
    place = re.match(r"(?:moved to )?`(lightning_\w+(?:\.\w+)+)`", note)
    if place is None:
        assert not has_moved, f"{name} has moved, but the note does not say where to"
        return
    package, _, attribute = place.group(1).partition(".")
    if package == "lightning_verl":  # it has an environment of its own
        stub = HERE.parents[1] / "plugins" / "lightning-verl" / package / "__init__.pyi"
        assert f" {attribute} as {attribute}" in stub.read_text(encoding="utf-8")
    else:
        _resolve(place.group(1))


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


WHERE = TEXT.partition("## Where modules went")[2].partition("\n## ")[0]


def test_every_path_that_is_not_dropped_can_be_imported():
    listed = [
        path
        for paths, place in re.findall(r"^\| (`.*?) \| (.*) \|$", WHERE, re.M)
        if not place.startswith("dropped")
        for path in re.findall(r"`([a-z_.]+)`", paths)
    ]
    assert len(listed) > 40
    for path in listed:
        if "verl" not in path:  # it has an environment of its own
            importlib.import_module(f"lightning_core.{path}")
    assert set(PLACES) - {"utils"} <= set(listed)


GONE = {
    path
    for paths in re.findall(r"^\| (`.*?) \| dropped.* \|$", WHERE, re.M)
    for path in re.findall(r"`([a-z_.]+)`", paths)
}


@pytest.mark.parametrize("path", sorted(GONE))
def test_a_path_that_is_dropped_is_not_there(path: str):
    with pytest.raises(ImportError):
        importlib.import_module(f"lightning_core.{path}")


def test_every_name_of_a_module_is_there_or_told():
    table = TEXT.partition("## Names of modules that are not here")[2].partition("\n## ")[0]
    told = {
        f"{module}.{name}"
        for module, names in re.findall(r"^\| `([a-z_.]+)` \| (.*?) \| .* \|$", table, re.M)
        for name in re.findall(r"`([\w*]+)`", names)
    }
    missing = set()
    for line in (HERE / "agentlightning_0_3_modules.txt").read_text(encoding="utf-8").splitlines():
        path, *names = line.split()
        if path in GONE or "verl" in path:  # that one has an environment of its own
            continue
        module = importlib.import_module(f"lightning_core.{path}")
        here = {name for name in names if name == "VERL" or (name not in DROPPED and hasattr(module, name))}
        not_kept = {name for name, note in ROWS.items() if note.startswith(("moved to ", "dropped"))}
        missing |= {f"{path}.{name}" for name in names if name not in here | not_kept}
    assert sorted(name for name in missing if not any(fnmatch.fnmatchcase(name, pattern) for pattern in told)) == []
    assert sorted(pattern for pattern in told if not fnmatch.filter(missing, pattern)) == []


def test_the_table_of_what_is_not_here_is_complete_and_true():
    table = TEXT.partition("## Methods and parameters that are not here")[2].partition("\n## ")[0]
    told = set()
    for names in re.findall(r"^\| (`.*?) \| .* \|$", table, re.M):
        for name, parameters in re.findall(r"`([\w.]+)(?:\(([\w, ]*)\))?`", names):
            told |= {f"{name}({each})" for each in parameters.split(", ")} if parameters else {name}
    assert told == set(_missing())


def _missing() -> Iterator[str]:
    """Yield what of the former signatures the names here do not take."""
    for line in (HERE / "agentlightning_0_3_signatures.txt").read_text(encoding="utf-8").splitlines():
        what, *parameters = line.split()
        owner_name, _, member = what.removesuffix("()").partition(".")
        if owner_name == "VERL" or owner_name in DROPPED:
            continue
        owner = getattr(lightning_core, owner_name)
        if member in ("", "__init__"):
            label, found = owner_name, owner
        else:
            label, found = f"{owner_name}.{member}", _member(owner, member)
        if found is None:
            yield label
        elif what.endswith("()"):
            yield from (f"{label}({name})" for name in parameters if not _takes(found, name))


def _member(owner: type, name: str) -> object:
    """Return a method, or whatever stands for an attribute: a field, or what the constructor sets."""
    for base in owner.__mro__:
        if name in vars(base) or name in inspect.get_annotations(base):
            return getattr(owner, name, None) or base
    constructor = inspect.unwrap(owner.__init__)  # type: ignore[misc]  # of this very class
    is_set = inspect.isfunction(constructor) and re.search(rf"self\.{name}\b.* = ", inspect.getsource(constructor))
    return owner if is_set else None


def _takes(found: object, name: str) -> bool:
    if name in deprecated_options(found):
        return True
    parameters = inspect.signature(found).parameters.values()  # type: ignore[arg-type]
    return any(each.name == name or each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL) for each in parameters)
