"""What a job of a config file is made of, as its run's manifest has it."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lightning_core.config import Job, resolved_values
from lightning_core.config.model import DATASETS
from lightning_core.errors import RunFolderError
from lightning_core.logs.secrets import without_secrets
from lightning_core.runs.manifest import Origin
from lightning_core.runs.provenance import describe_origin

HIDDEN = "***"


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
    if "store" not in job.config.model_fields_set:
        del config["store"]  # it is in the run's folder
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
    again = {each.partition("=")[0].strip() for each in given}
    missing = [key for each in kept for key, _, value in [each.partition("=")] if value == HIDDEN and key not in again]
    if missing:
        options = " ".join(f"--set {key}=VALUE" for key in missing)
        raise RunFolderError(f"run {run_id} was started with secrets, which are not kept; add them again: {options}")
    return [*(each for each in kept if each.partition("=")[0] not in again), *given]


def _without_secret(override: str) -> str:
    """Return an override as it can be kept; the value is `***` where a secret is in it."""
    from lightning_core.config.yaml_text import read_yaml

    key, _, text = override.partition("=")
    value: Any = read_yaml(text)[0]
    name = key.strip().rpartition(".")[2]
    return override if without_secrets(name, value) == value else f"{key.strip()}={HIDDEN}"


def _data_files(job: Job, folder: Path) -> list[Path]:
    """Return the files that the config names as datasets; modules are found among those that are loaded."""
    sources = [getattr(job.config, key) for key in DATASETS]
    paths = [folder / Path(source).expanduser() for source in sources if isinstance(source, str)]
    return [path for path in paths if path.is_file()]
