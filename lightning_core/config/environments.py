"""Tasks of an environment that a config file names."""

import json
from pathlib import Path

from lightning_core.agent.environments import (
    SPLITS,
    Environment,
    Split,
    TaskRows,
    kept_rows,
    make_environment,
    take,
)
from lightning_core.config.components import import_path, located
from lightning_core.config.datasets import EnvironmentSource
from lightning_core.config.files import ConfigFile
from lightning_core.config.model import DATASETS, Config
from lightning_core.errors import ConfigError
from lightning_core.runs import RunFolder

MAIN_PROMPT = "main_prompt"
"""The name of a prompt where the resources have none yet."""


def tasks_of(
    file: ConfigFile, config: Config, folder: Path, run: RunFolder | None
) -> tuple[Environment | None, dict[str, TaskRows]]:
    """Make the environment that the datasets name, and their tasks.

    Args:
        file: The config file.
        config: What it says.
        folder: Where paths start.
        run: A run to go on with, whose tasks are read from its folder; None for a new one.

    Returns:
        The environment, None where none is named; and the tasks of each key that names it.

    Raises:
        ConfigError: When two are named, or one cannot be made or has too few tasks.
    """
    named = {key: source for key in DATASETS if isinstance(source := getattr(config, key), EnvironmentSource)}
    if not named:
        return None, {}
    (first, source), *others = named.items()
    for key, other in others:
        if (other.environment, other.options()) != (source.environment, source.options()):
            raise ConfigError(
                f"{file.where((key,))}: {key} is of another environment than {first}, or has other options; the "
                "datasets of a run are of one environment, and differ in size"
            )
    with located(file, first, also=ValueError):
        environment = make_environment(import_path(source.environment, folder), source.options())
    own = dict(zip(DATASETS, SPLITS, strict=True))
    splits = {key: each.split or own[key] for key, each in named.items()}
    rows = {key: kept for key, each in named.items() if (kept := _kept(run, key, each)) is not None}
    sizes: dict[Split, int] = {}
    for key, split in splits.items():
        if key not in rows:
            sizes[split] = max(named[key].size, sizes.get(split, 0))
    with located(file, first):
        made = take(environment, sizes)
    return environment, {
        key: rows[key] if key in rows else TaskRows(made[splits[key]][: each.size]) for key, each in named.items()
    }


def _kept(run: RunFolder | None, key: str, source: EnvironmentSource) -> TaskRows | None:
    """Return the tasks that a run has kept; None where it has none of this source."""
    if run is None or not run.manifest_file.exists():
        return None
    path = kept_rows(run.path, key)
    if not path.exists() or run.manifest().origin.config.get(key) != source.model_dump(exclude_none=True):
        return None
    return TaskRows(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
