"""Write down which distribution of this repository ships which component: `make ships-in` after a new entry point."""

import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

CHECKOUT = Path(__file__).resolve().parent.parent
TARGET = CHECKOUT / "lightning_core" / "registry" / "ships_in.py"
PREFIX = "lightning_core."
FORMER = "lightning_core.former"
"""It is not a kind of component: it has no names that a person asks for."""


def ships_in() -> dict[str, dict[str, str]]:
    """Read the entry points of all plugins: kind -> name -> distribution."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(CHECKOUT.glob("plugins/lightning-*/pyproject.toml")):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        for group, names in project.get("entry-points", {}).items():
            if group.startswith(PREFIX) and group != FORMER:
                found.setdefault(group.removeprefix(PREFIX), {}).update(dict.fromkeys(names, project["name"]))
    return {kind: dict(sorted(names.items())) for kind, names in sorted(found.items())}


def requires() -> dict[str, tuple[str, ...]]:
    """Read which of our distributions each of them requires, but for the core: what pip has to be given, too."""
    projects = [
        tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        for path in CHECKOUT.glob("plugins/lightning-*/pyproject.toml")
    ]
    direct = {
        each["name"]: {Requirement(needed).name for needed in each["dependencies"]} & {one["name"] for one in projects}
        for each in projects
    }

    def closure(name: str) -> set[str]:
        return direct[name].union(*map(closure, direct[name]))

    return {name: tuple(sorted(closure(name))) for name in sorted(direct) if direct[name]}


def source() -> str:
    """Return the text of the module."""
    lines = [
        '"""Which of our own distributions ships which component. Written by `.ci/ships_in.py`; do not edit."""',
        "",
        "from collections.abc import Mapping",
        "from typing import Final",
        "",
        "_NAMES: Final[Mapping[str, Mapping[str, str]]] = {",
    ]
    for kind, names in ships_in().items():
        shipped = {each: " ".join(name for name in names if names[name] == each) for each in sorted(names.values())}
        lines += [f'    "{kind}": {shipped!r},']
    lines += ["}", '"""Kind -> distribution -> names."""', ""]
    lines += ["SHIPS_IN: Final[Mapping[str, Mapping[str, str]]] = {"]
    lines += ["    kind: {name: where for where, names in shipped.items() for name in names.split()}"]
    lines += ["    for kind, shipped in _NAMES.items()"]
    lines += ["}", '"""Kind -> name -> distribution."""', "", "REQUIRES: Final[Mapping[str, tuple[str, ...]]] = {"]
    lines += [f'    "{name}": {needed!r},' for name, needed in requires().items()]
    lines += ["}", '"""Distribution -> those of ours that it requires, but for the core."""', ""]
    return "\n".join(lines)


if __name__ == "__main__":
    TARGET.write_text(source(), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", TARGET], check=True)
