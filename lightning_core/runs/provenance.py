"""What a run is made of, as far as this process can tell: versions, repository, code."""

import hashlib
import importlib.metadata
import os
import platform
import re
import site
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lightning_core.errors import RunFolderError
from lightning_core.logs.secrets import hide_keys_in
from lightning_core.runs.manifest import Git, Origin

GIT_SECONDS = 5.0
"""How long git may take to say in which state a repository is."""


def describe_origin(
    *,
    config_file: Path | None = None,
    overrides: Iterable[str] = (),
    config: Mapping[str, Any] | None = None,
    seed: Any = None,
    data_files: Iterable[Path] = (),
) -> Origin:
    """Look at what a run is made of, once all that it needs is imported.

    Args:
        config_file: Its config file; None where a program makes it.
        overrides: What is set over it, without secrets.
        config: The resolved config, without secrets.
        seed: The algorithm's.
        data_files: The files of its datasets.

    Raises:
        RunFolderError: When a file cannot be read.
    """
    files = dict.fromkeys([*(path.resolve() for path in data_files), *_own_modules()])
    return Origin(
        config_file=None if config_file is None else str(config_file.resolve()),
        folder=str(Path.cwd()),
        overrides=list(overrides),
        config=hide_keys_in(config or {}),
        seed=seed,
        python=platform.python_version(),
        platform=platform.platform(),
        versions=_versions(),
        git=_git(Path.cwd() if config_file is None else config_file.resolve().parent),
        files={str(path): sha256 for path in files if (sha256 := hash_file(path)) is not None},
    )


def hash_file(path: Path) -> str | None:
    """Return the SHA-256 of a file; None where there is none.

    Raises:
        RunFolderError: When it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise RunFolderError(f"cannot read {path}, which the run depends on: {exc.strerror}") from exc


def version_of(distribution: str) -> str | None:
    """Return the version that is installed, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _versions() -> dict[str, str]:
    """Return the version of each distribution of which a module is loaded."""
    loaded = sys.modules.keys()
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.name
        if name and name not in found and not loaded.isdisjoint(_modules(distribution)):
            found[name] = distribution.version
    return dict(sorted(found.items()))


def _modules(distribution: importlib.metadata.Distribution) -> list[str]:
    """Return modules of a distribution, by what it says or, as is usual, by its name."""
    words = re.split(r"[-_.]+", distribution.name.lower())
    # Several distributions may share a package, as opentelemetry-sdk does.
    return [*(distribution.read_text("top_level.txt") or "").split(), "_".join(words), ".".join(words)]


def _own_modules() -> Iterator[Path]:
    """Yield the files of the loaded modules that neither Python, nor an installed distribution, nor the core has."""
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")}
    folders |= {*site.getsitepackages(), site.getusersitepackages(), str(Path(__file__).parents[1])}
    others = tuple({f"{path}{os.sep}" for folder in folders for path in (folder, Path(folder).resolve())})
    for module in tuple(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and not file.startswith(others):
            path = Path(file).resolve()
            if path.is_file() and not str(path).startswith(others):
                yield path


def _git(folder: Path) -> Git | None:
    """Return the state of a folder's repository; None where there is none, or no git."""
    commit = _ask_git(folder, "rev-parse", "HEAD")
    # Without files that git does not know: the run's own folder may be one of them.
    changed = _ask_git(folder, "status", "--porcelain", "--untracked-files=no")
    return None if commit is None or changed is None else Git(commit=commit, dirty=bool(changed))


def _ask_git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=GIT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
