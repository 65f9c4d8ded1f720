"""What is installed in the development environment, and what an import of the core costs."""

import itertools
import json
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

CHECKOUT = Path(__file__).resolve().parent.parent
PLUGIN_PROJECTS = sorted(CHECKOUT.glob("plugins/lightning-*/pyproject.toml"))
APART = {"lightning-grpo", "lightning-ray", "lightning-verl"}  # are tested in .venv-verl, with constraints-verl.txt
OURS = {"lightning-core", *(path.parent.name for path in PLUGIN_PROJECTS)} - APART

IMPORTS = ["import lightning_core", "from lightning_core import Trainer, rollout"]
HEAVY = {"aiohttp", "click", "openai", "rich", "torch"}
MAX_PEAK_MIB = 45

# VmHWM starts anew with each program, whereas ru_maxrss of a child begins at what its parent used.
REPORT = """
import json, pathlib, re, sys
status = pathlib.Path("/proc/self/status")
peak = re.search(r"VmHWM:\\s+(\\d+) kB", status.read_text()) if status.exists() else None
print(json.dumps({"modules": sorted(sys.modules), "peak_mib": int(peak[1]) / 1024 if peak else None}))
"""


def read_project(path: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return project


def read_pins(file: str = "constraints.txt") -> dict[str, str]:
    """Read a constraints file, which holds exact versions only, as name -> version."""
    lines = (CHECKOUT / file).read_text(encoding="utf-8").splitlines()
    pins: dict[str, str] = {}
    for line in lines:
        if not line.startswith("#"):
            name, version = line.split("==")
            pins[canonicalize_name(name)] = version
    return pins


def import_in_new_process(statement: str) -> dict[str, Any]:
    command = [sys.executable, "-c", statement + REPORT]
    subprocess.run(command, check=True, capture_output=True, timeout=200)  # a first import also compiles
    completed = subprocess.run(command, check=True, capture_output=True, timeout=200)
    report: dict[str, Any] = json.loads(completed.stdout)
    return report


@pytest.fixture(scope="module", params=IMPORTS)
def imported(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What a fresh process holds after one of the imports that have to be cheap."""
    return import_in_new_process(request.param)


def test_the_lists_that_take_no_globs_name_every_plugin() -> None:
    tools = read_project(CHECKOUT / "pyproject.toml")["tool"]
    forbidden = tools["importlinter"]["contracts"][1]["forbidden_modules"]
    folders = {path.parent.name for path in PLUGIN_PROJECTS}
    packages = {name.replace("-", "_") for name in folders}

    # To the linter lightning_ray is a module from elsewhere, which may not be imported all the same.
    assert packages - {"lightning_ray"} == set(tools["importlinter"]["root_packages"]) - {"lightning_core"}
    assert packages == {name for name in forbidden if name.startswith("lightning_")}
    assert folders == {Path(each).name for each in tools["mypy"]["mypy_path"] if "/plugins/" in each}


@pytest.mark.parametrize("path", PLUGIN_PROJECTS, ids=lambda path: path.parent.name)
def test_a_plugin_requires_a_core_that_only_this_project_has(path: Path) -> None:
    requirements = map(Requirement, read_project(path)["project"]["dependencies"])
    (core,) = (requirement for requirement in requirements if requirement.name == "lightning-core")

    assert str(core.specifier) == "<2,>=1.0.0.dev0"


def test_constraints_never_name_a_distribution_of_this_repository() -> None:
    assert not [name for name in read_pins() if name.startswith("lightning")]


def test_everything_that_is_required_is_pinned_at_the_version_that_is_installed() -> None:
    pins = read_pins()
    pending = [Requirement(line) for line in read_project(CHECKOUT / "pyproject.toml")["dependency-groups"]["dev"]]
    pending += [Requirement("lightning-core[instrument]"), *map(Requirement, OURS)]
    seen: set[tuple[str, frozenset[str]]] = set()
    astray = set()
    while pending:
        required = pending.pop()
        name = canonicalize_name(required.name)
        if (name, frozenset(required.extras)) in seen:
            continue
        seen.add((name, frozenset(required.extras)))
        installed = distribution(name)
        if name not in OURS and pins.get(name) != installed.version:
            astray.add(f"{name}=={installed.version}")
        for requirement in map(Requirement, installed.requires or []):
            extras = required.extras or {""}
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
                pending.append(requirement)

    assert not astray, f"constraints.txt lacks {sorted(astray)}"


def test_the_lowest_versions_that_are_tried_are_those_that_are_required() -> None:
    pins = read_pins("constraints-lowest.txt")
    core = read_project(CHECKOUT / "pyproject.toml")["project"]
    required = [*core["dependencies"], *itertools.chain(*core["optional-dependencies"].values())]
    for name in ("apo", "gepa", "http", "mongo", "proxy", "sqlite"):
        required += read_project(CHECKOUT / "plugins" / f"lightning-{name}" / "pyproject.toml")["project"][
            "dependencies"
        ]
    astray = [
        line
        for line, requirement in zip(required, map(Requirement, required), strict=True)
        for specifier in requirement.specifier
        if specifier.operator == ">=" and canonicalize_name(requirement.name) not in OURS
        if Version(pins[canonicalize_name(requirement.name)]) != Version(specifier.version)
    ]
    assert not astray, "make constraints-lowest.txt anew"


def test_an_import_loads_neither_plugins_nor_heavy_libraries(imported: dict[str, Any]) -> None:
    packages = {module.partition(".")[0] for module in imported["modules"]}

    assert not packages & HEAVY
    assert not {package for package in packages if package.startswith("lightning_")} - {"lightning_core"}


def test_a_plain_import_does_not_load_the_opentelemetry_sdk() -> None:
    assert "opentelemetry.sdk" not in import_in_new_process("import lightning_core")["modules"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads a process's peak memory from /proc")
def test_an_import_stays_within_its_memory(imported: dict[str, Any]) -> None:
    assert imported["peak_mib"] < MAX_PEAK_MIB
