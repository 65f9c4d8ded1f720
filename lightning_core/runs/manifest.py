"""What is written down of a run: what it was made of, and its result."""

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import site
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

from lightning_core.algorithm.base import Conclusion
from lightning_core.errors import RunFolderError, first_fault
from lightning_core.runs.result import FitResult, RunStatus
from lightning_core.secrets import hide_keys_in
from lightning_core.texts import shortened
from lightning_core.types.text import well_formed_value


def private(path: str, flags: int) -> int:
    """Open a file so that only its owner can read it, where it is made anew; an `opener` of `open`."""
    return os.open(path, flags, 0o600)


def write_atomically(path: Path, text: str) -> None:
    """Put a text in the place of a file. A reader finds the old one or the new one, also after a kill.

    Raises:
        RunFolderError: When it cannot be written; the old one stays.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            with open(draft, "w", encoding="utf-8", opener=private) as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as exc:
        raise RunFolderError(f"cannot write {path}: {exc.strerror or exc}") from exc


Outcome = RunStatus | Literal["running"]
"""`running` stays where the process was killed."""


class Git(BaseModel):
    """The state of the repository that the config, or the program, is in."""

    commit: str
    dirty: bool
    """Whether tracked files differ from the commit."""


class Origin(BaseModel):
    """What a run is made of. In place of secrets is `***`."""

    config_file: str | None = None
    """The absolute path; None where a program made the run."""
    folder: str | None = None
    """The current folder of the process that started it."""
    overrides: list[str] = Field(default_factory=list)
    """What was set over the config file, each as `key=value`."""
    config: dict[str, Any] = Field(default_factory=dict)
    """The resolved config: what was set, and the defaults of what was not."""
    seed: Any = None
    """The algorithm's, where it has one."""
    python: str = ""
    platform: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    """Distribution -> version, of all that were in use when the run started."""
    git: Git | None = None
    files: dict[str, str] = Field(default_factory=dict)
    """Absolute path -> SHA-256, of the datasets, the agent's module and all others that come from no distribution."""


_ELSEWHERE = ("run_id", "status", "algorithm", "folder", "is_in_memory", "initial_resources", "best_resources")
_EXCLUDED: Any = {
    "result": {**dict.fromkeys(_ELSEWHERE, True), "failures": {"__all__": {"example", "message", "task"}}}
}
"""What a manifest leaves out of a result: it has it elsewhere, or it may be long, or have keys."""


class Continuation(BaseModel):
    """A run was taken up again."""

    time: datetime
    changes: list[str] = Field(default_factory=list)
    """What was different from what the run was made of before, each in a few words."""


class Manifest(BaseModel):
    """What is written down of a run."""

    format: Literal[1] = 1
    run_id: str
    algorithm: str
    outcome: Outcome
    error: str | None = None
    """What was raised, in one line, when it failed."""
    start: datetime
    end: datetime | None = None
    resumed: list[Continuation] = Field(default_factory=list)
    store: str
    """The name of the store that has its rollouts, or its class."""
    store_file: str | None = None
    """The store's file in the folder of the run; None where the store is elsewhere."""
    origin: Origin
    result: FitResult | None = None
    """Without resources and the inputs of failed rollouts; `best_resources.json` has the best resources."""
    conclusion: Conclusion | None = None
    """What the algorithm has come to, where it says so."""

    @model_validator(mode="before")
    @classmethod
    def _complete_result(cls, given: Any) -> Any:
        if isinstance(given, dict) and isinstance(given.get("result"), dict):
            known = {"run_id": given.get("run_id"), "status": given.get("outcome")}
            return {**given, "result": {**known, **given["result"]}}
        return given

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """Read one.

        Raises:
            RunFolderError: When there is none, or it is not as it was written.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError as exc:
            raise RunFolderError(f"{path.parent} is not a run: it has no {path.name}") from exc
        except OSError as exc:
            raise RunFolderError(f"cannot read {path}: {exc.strerror}") from exc
        except ValidationError as exc:
            raise RunFolderError(
                f"{path} is damaged: {first_fault(exc)}; put a good copy in its place, or "
                f"remove the run: agl runs rm {path.parent.name}"
            ) from exc

    def record(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return self.model_dump(mode="json", exclude=_EXCLUDED)

    def write(self, path: Path) -> None:
        """Write it, whole or not at all.

        Raises:
            RunFolderError: When it cannot be written.
        """
        write_atomically(path, json.dumps(self.record(), indent=2, ensure_ascii=False) + "\n")


def now() -> datetime:
    """Return the time, to the millisecond."""
    time = datetime.now(UTC)
    return time.replace(microsecond=time.microsecond // 1000 * 1000)


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
        config=hide_keys_in(well_formed_value(config or {})),
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
    versions: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.name
        if name and name not in versions and not loaded.isdisjoint(_modules(distribution)):
            versions[name] = distribution.version
    return dict(sorted(versions.items()))


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


MAX_CHARACTERS = 40
"""How much of a value is shown."""


def changes_since(before: Origin, now: Origin) -> list[str]:
    """Say what has changed, each in a few words: values of the config, files, versions, the repository.

    A file or a version that `before` does not know is not a change: a module may be loaded later. Another budget is not
    a change, either: so a run goes on that has used up its own.
    """
    return [
        *_config_changes("", _as_json(before.config), _as_json(now.config)),
        *_file_changes(before),
        *_version_changes(before, now),
        *([] if before.git == now.git else [f"git: {_git_words(before.git)} → {_git_words(now.git)}"]),
    ]


def _as_json(values: dict[str, Any]) -> Any:
    config = Origin.model_validate_json(Origin(config=values).model_dump_json()).config
    if isinstance(proxy := config.get("llm_proxy"), dict):
        proxy.pop("budget", None)
    return {name: value for name, value in config.items() if name != "budget"}


def _config_changes(place: str, before: Any, now: Any) -> Iterator[str]:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*before, *now]):
            yield from _config_changes(f"{place}.{key}" if place else key, before.get(key), now.get(key))
    elif before != now:
        yield f"{place} {_show(before)} → {_show(now)}"


def _show(value: Any) -> str:
    return "unset" if value is None else shortened(value, MAX_CHARACTERS)


def _file_changes(before: Origin) -> Iterator[str]:
    for file, sha256 in before.files.items():
        digest = hash_file(Path(file))
        if digest != sha256:
            yield file if digest is not None else f"{file} (gone)"


def _version_changes(before: Origin, now: Origin) -> Iterator[str]:
    if before.python != now.python:
        yield f"Python {before.python} → {now.python}"
    for distribution, version in before.versions.items():
        found = version_of(distribution)
        if found != version:
            yield f"{distribution} {version} → {found or 'not installed'}"


def _git_words(git: Git | None) -> str:
    if git is None:
        return "no repository"
    return f"{git.commit[:12]} with uncommitted changes" if git.dirty else git.commit[:12]
