"""What a job of a config file is made of, as its run's manifest has it."""

import re
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any

from lightning_core.config import Job, resolved_values
from lightning_core.config.model import DATASETS
from lightning_core.errors import RunFolderError
from lightning_core.logs.secrets import without_secrets
from lightning_core.runs.manifest import Origin
from lightning_core.runs.provenance import describe_origin

HIDDEN = "***"

_REFERENCE = re.compile(r"os\.environ/\w+")


def job_origin(config_file: Path, job: Job, overrides: Iterable[str]) -> Origin:
    """Look at what a job is made of.

    Args:
        config_file: Where it was loaded from.
        job: The job, loaded.
        overrides: What was set over the file, each as `key=value`.

    Raises:
        RunFolderError: When a file that it depends on cannot be read.
    """
    config = resolved_values(job)
    algorithm = config["algorithm"]
    return describe_origin(
        config_file=config_file,
        overrides=[_without_secret(each) for each in overrides],
        config=config,
        seed=algorithm.get("seed"),
        data_files=_data_files(job, config_file.resolve().parent),
    )


def all_overrides(kept: Sequence[str], given: Sequence[str], *, run_id: str) -> list[str]:
    """Return what is set over the config file when a run goes on: what was set before, and what is set now.

    Raises:
        RunFolderError: When a secret was set before, which was not kept, and is not set again.
    """
    again = {_key_of(each) for each in given}
    left = [each for each in kept if not _is_set_by(_key_of(each), again)]
    if missing := hidden_keys(left):
        options = " ".join(f"--set {key}=VALUE" for key in missing)
        raise RunFolderError(f"run {run_id} was started with secrets, which are not kept; add them again: {options}")
    return [*left, *given]


def hidden_keys(overrides: Iterable[str]) -> list[str]:
    """Return the keys of overrides whose values are secrets, and were not kept."""
    return list(dict.fromkeys(_key_of(each) for each in overrides if each.partition("=")[2] == HIDDEN))


def _key_of(override: str) -> str:
    return override.partition("=")[0].strip()


def _is_set_by(key: str, again: Container[str]) -> bool:
    """Whether a key is among these, or lies below one of them, which is set as a whole."""
    names = key.split(".")
    return any(".".join(names[:length]) in again for length in range(1, len(names) + 1))


def _without_secret(override: str) -> str:
    """Return an override as it can be kept; the value is `***` where a secret is in it.

    The reference to a variable, `os.environ/NAME`, is none.
    """
    from lightning_core.config.yaml_text import read_yaml

    key = _key_of(override)
    value: Any = read_yaml(override.partition("=")[2])[0]
    if isinstance(value, str) and _REFERENCE.fullmatch(value):
        return override
    first, *below = key.split(".")
    for name in reversed(below):  # where it stands may say what it is: below `headers`, or in a program's environment
        value = {name: value}
    return override if without_secrets(first, value) == value else f"{key}={HIDDEN}"


def _data_files(job: Job, folder: Path) -> list[Path]:
    """Return the files that the config names as datasets; modules are found among those that are loaded."""
    sources = [getattr(job.config, key) for key in DATASETS]
    paths = [folder / Path(source).expanduser() for source in sources if isinstance(source, str)]
    return [path for path in paths if path.is_file()]
