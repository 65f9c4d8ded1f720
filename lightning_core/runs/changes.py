"""What is different from what a run was made of."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lightning_core.runs.manifest import Git, Origin
from lightning_core.runs.provenance import hash_file, version_of

MAX_CHARACTERS = 40
"""A longer value is not shown."""


def changes_since(before: Origin, now: Origin) -> list[str]:
    """Say what has changed, each in a few words: values of the config, files, versions, the repository.

    What `before` does not know is no change: a module may be loaded later. Nor is another budget: it is how a run goes
    on that has used up its own.
    """
    return [
        *_config_changes("", _as_json(before), _as_json(now)),
        *_file_changes(before),
        *_version_changes(before, now),
        *_git_changes(before.git, now.git),
    ]


def _as_json(origin: Origin) -> Any:
    config = Origin.model_validate_json(origin.model_dump_json()).config
    proxy = config.get("llm_proxy")
    if isinstance(proxy, dict):
        config["llm_proxy"] = {name: value for name, value in proxy.items() if name != "budget"}
    return {name: value for name, value in config.items() if name != "budget"}


def _config_changes(place: str, before: Any, now: Any) -> Iterator[str]:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*before, *now]):
            yield from _config_changes(f"{place}.{key}" if place else key, before.get(key), now.get(key))
    elif before != now:
        words = f"{_shown(before)} → {_shown(now)}"
        yield f"{place} {words}" if len(words) <= 2 * MAX_CHARACTERS and _is_plain(before, now) else place


def _is_plain(*values: Any) -> bool:
    return all(value is None or (isinstance(value, str | int | float) and "\n" not in str(value)) for value in values)


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)


def _file_changes(before: Origin) -> Iterator[str]:
    for file, sha256 in before.files.items():
        found = hash_file(Path(file))
        if found != sha256:
            yield file if found is not None else f"{file} (gone)"


def _version_changes(before: Origin, now: Origin) -> Iterator[str]:
    if before.python != now.python:
        yield f"Python {before.python} → {now.python}"
    for distribution, version in before.versions.items():
        found = version_of(distribution)
        if found != version:
            yield f"{distribution} {version} → {found or 'not installed'}"


def _git_changes(before: Git | None, now: Git | None) -> Iterator[str]:
    if before is None or now is None:
        if before != now:
            yield "git: a repository now" if before is None else "git: no repository any more"
    elif before.commit != now.commit:
        yield f"git commit {before.commit[:12]} → {now.commit[:12]}"
    elif before.dirty != now.dirty:
        yield "git: uncommitted changes" if now.dirty else "git: no uncommitted changes any more"
