"""Build all wheels into `dist/` and try them in clean environments outside the checkout.

Usage: python .ci/wheels.py PLUGIN_FOLDER...

The core is installed alone, then each of these plugins with just what it requires, then all together. The other plugins
are only built. In each environment the installed distributions must be the very wheels that were built: the public
index has a foreign `lightning-core`. A fit of two rollouts is run with each store, tracer, runner and strategy.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path

from lightning_mongo.testing import find_mongod

CHECKOUT = Path(__file__).resolve().parent.parent
CONSTRAINTS = CHECKOUT / "constraints.txt"
DIST = CHECKOUT / "dist"
COMMAND_TIMEOUT_SECONDS = 600

WITHOUT_COMPONENTS = {"lightning-legacy"}
"""What `agl plugins` does not list: it adds names and paths alone."""


def run(*command: str | Path, cwd: Path, extra_environment: Mapping[str, str] | None = None) -> str:
    """Run a command that has no access to the checkout's own environment, and give its output back."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    print("$", *(Path(part).name if isinstance(part, Path) else part for part in command), flush=True)
    completed = subprocess.run(
        command,
        cwd=cwd,
        env=kept | dict(extra_environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_TIMEOUT_SECONDS,
        check=False,
    )
    if completed.returncode != 0:
        sys.exit(f"{completed.stdout}\nThe command above ended with status {completed.returncode}.")
    return completed.stdout


def build_wheel(project: Path, scratch: Path) -> Path:
    """Build one project's wheel into `dist/`, with this environment's build backend."""
    folder = scratch / f"wheel-{project.name}"
    run(*(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, project), cwd=scratch)
    (built,) = folder.glob("*.whl")
    return Path(shutil.copy2(built, DIST))


def identity(wheel: Path) -> tuple[str, str]:
    """Read a wheel's distribution name and version from its file name."""
    name, version, _ = wheel.name.split("-", maxsplit=2)
    return name.replace("_", "-"), version


class CleanEnvironment:
    """A virtual environment that holds the given wheels, what they require, and no pip."""

    def __init__(self, folder: Path, wheels: Sequence[Path]) -> None:
        self._folder = folder
        venv.create(folder, with_pip=False, symlinks=True)
        pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python")
        run(*pip, "install", "--quiet", "--constraint", CONSTRAINTS, *wheels, cwd=folder)
        run(*pip, "check", cwd=folder)
        self._assert_ours(wheels)

    def agl(self, *arguments: str) -> str:
        """Run the installed `agl` command and give its output back."""
        return run(self._folder / "bin" / "agl", *arguments, cwd=self._folder)

    def probe(self, script: str, *arguments: str) -> None:
        """Run a script of this folder in isolated mode, so that only what is installed can be imported."""
        python = self._folder / "bin" / "python"
        mongod = find_mongod()
        path = os.pathsep.join([*([str(mongod.parent)] if mongod else []), os.environ["PATH"]])
        probe = CHECKOUT / ".ci" / script
        print(run(python, "-I", probe, *arguments, cwd=self._folder, extra_environment={"PATH": path}), end="")

    def _assert_ours(self, wheels: Sequence[Path]) -> None:
        (packages,) = self._folder.glob("lib/python*/site-packages")
        installed = {
            distribution.name: distribution
            for distribution in distributions(path=[str(packages)])
            if distribution.name.startswith("lightning")
        }
        built = {identity(wheel): wheel for wheel in wheels}
        found = {(name, distribution.version) for name, distribution in installed.items()}
        if found != built.keys():
            sys.exit(f"installed under our names: {sorted(found)}; built: {sorted(built)}")
        for (name, version), wheel in built.items():
            origin = json.loads(installed[name].read_text("direct_url.json") or "{}")
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            if origin.get("archive_info", {}).get("hashes", {}).get("sha256") != digest:
                sys.exit(f"{name} {version} is not the wheel built here ({wheel.name}); it came from {origin}")


def assert_contains(output: str, *words: str) -> None:
    """End the script when a command's output lacks a word."""
    for word in words:
        if word not in output:
            sys.exit(f"{output}\nThe output above lacks {word!r}.")


def required(name: str, wheels: Mapping[str, Path]) -> dict[str, Path]:
    """Return the wheels of this repository that a distribution requires, its own first."""
    found = {name: wheels[name]}
    with zipfile.ZipFile(wheels[name]) as archive:
        (metadata,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    for line in lines:
        needed = re.match(r"Requires-Dist: ([\w.-]+)(?!.*extra ==)", line)
        if needed and needed[1] in wheels and needed[1] not in found:
            found |= required(needed[1], wheels)
    return found


def main(plugin_folders: Sequence[str]) -> None:
    """Build everything, then try the core alone, each plugin with just what it requires, and all together."""
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    with tempfile.TemporaryDirectory(prefix="lightning-wheels-") as name:
        scratch = Path(name)
        core = build_wheel(CHECKOUT, scratch)
        plugins = [build_wheel(CHECKOUT / folder, scratch) for folder in plugin_folders]
        for folder in sorted(set(CHECKOUT.glob("plugins/lightning-*")) - {CHECKOUT / each for each in plugin_folders}):
            build_wheel(folder, scratch)  # what it requires cannot be installed beside the rest
        wheels = {identity(wheel)[0]: wheel for wheel in (core, *plugins)}

        alone = CleanEnvironment(scratch / "core-alone", [core])
        assert_contains(alone.agl("--version"), identity(core)[1])
        assert_contains(alone.agl("plugins"), "baseline", "memory", "otel")
        alone.probe("probe_core_alone.py")
        alone.probe("probe_fit.py", "lightning-core")

        for plugin in plugins:
            distribution = identity(plugin)[0]
            with_one = CleanEnvironment(scratch / distribution, list(required(distribution, wheels).values()))
            assert_contains(with_one.agl("plugins", "--check"), *({distribution} - WITHOUT_COMPONENTS))
            with_one.probe("probe_fit.py", distribution)

        together = CleanEnvironment(scratch / "core-and-plugins", [core, *plugins])
        listed = {identity(wheel)[0] for wheel in plugins} - WITHOUT_COMPONENTS
        assert_contains(together.agl("plugins", "--check"), "baseline", *sorted(listed))
    print("The wheels in dist/ install, load and fit: the core alone and each plugin; and load all together.")


if __name__ == "__main__":
    main(sys.argv[1:])
