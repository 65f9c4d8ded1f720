"""Datasets from files and from code."""

import csv
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from lightning_core.agent.environments import Split
from lightning_core.errors import ConfigError
from lightning_core.registry import load_object
from lightning_core.types import Dataset

HUB_PREFIX = "hf:"


class Hub(BaseModel):
    """A dataset of the Hugging Face hub, and which part of it."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=f"^{HUB_PREFIX}.")
    """`hf:` and the dataset's name."""
    subset: str | None = None
    """The part that the library calls a config; None for its default."""
    split: str | None = None
    """Such as `train`, or `test[:100]`. May be left out where there is only one."""
    revision: str | None = None
    """A branch, a tag or a commit; None for the newest."""

    def load(self) -> Any:
        """Load it, from the library's cache or from the hub.

        Raises:
            ConfigError: When the library is not installed, does not find it, or when it has several splits.
        """
        load = _imported("datasets", "load_dataset", needed_by=f"dataset {self.name!r}")
        try:
            data = load(self.name.removeprefix(HUB_PREFIX), self.subset, split=self.split, revision=self.revision)
        except Exception as exc:  # the library, and those below it, raise whatever they like
            raise ConfigError(f"dataset {self.name!r} cannot be loaded: {type(exc).__name__}: {exc}") from exc
        if self.split is not None:
            return data
        if len(data) != 1:
            raise ConfigError(
                f"dataset {self.name!r} has the splits {', '.join(map(str, data))}; say which, as in "
                f"{{name: {self.name}, split: {next(iter(data), 'train')}}}"
            )
        return next(iter(data.values()))


class EnvironmentSource(BaseModel):
    """Tasks of an environment: its name, its options, and how many tasks."""

    model_config = ConfigDict(extra="allow")

    environment: str
    """A name, as `agl environments` lists them, or `"module:Class"`."""
    size: int = Field(default=100, ge=1, strict=True)
    split: Split | None = None
    """Which tasks; None for those of the key, as `train` of `train_dataset`."""


def read_parquet(path: Path) -> list[Any]:
    """Read a parquet file: a dict for each row.

    Raises:
        ConfigError: When pyarrow is not installed, or the file is not a parquet.
        OSError: When the file cannot be read.
    """
    read_table = _imported("pyarrow.parquet", "read_table", needed_by=str(path))
    with path.open("rb") as file:
        try:
            rows: list[Any] = read_table(file).to_pylist()
        except ValueError as exc:  # ArrowInvalid is one
            raise ConfigError(f"{path} is not a parquet file: {exc}") from exc
    return rows


def _imported(module: str, function: str, *, needed_by: str) -> Any:
    package = module.partition(".")[0]
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as exc:
        raise ConfigError(
            f"{needed_by} needs the package {package}, which cannot be imported ({exc}); install it: "
            f"pip install {package}"
        ) from exc


def load_dataset(source: str | Hub | Sequence[Any], folder: Path) -> Dataset[Any]:
    """Load a dataset.

    Args:
        source: The samples themselves; a `.jsonl`, `.json`, `.csv` or `.parquet` file; `"hf:name"`, or a `Hub`, for a
            dataset of the Hugging Face hub; or `"module:name"` of a dataset, or of a function without arguments that
            returns one.
        folder: Where a relative path starts.

    Raises:
        ConfigError: When it cannot be read, is malformed (says where), is empty, or needs a package that is not
            installed.
    """
    if isinstance(source, str) and source.startswith(HUB_PREFIX) and source != HUB_PREFIX:
        source = Hub(name=source)
    if isinstance(source, Hub):
        dataset: Any = source.load()
        source = source.name
    elif not isinstance(source, str):
        dataset = list(source)
    elif (read := _READERS.get(Path(source).suffix)) is not None:
        dataset = _read_file(folder / source, read)
    elif ":" in source:
        dataset = load_object(source)
        try:
            dataset = dataset() if callable(dataset) else dataset
        except Exception as exc:  # whatever the user's function raises
            raise ConfigError(f"dataset {source!r} cannot be loaded: {type(exc).__name__}: {exc}") from exc
    else:
        raise ConfigError(
            f"dataset {source!r} is neither a {', '.join(_READERS)} file nor a 'module:name' nor an 'hf:name'"
        )
    is_indexed = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if not is_indexed or isinstance(dataset, str | bytes | Mapping):
        raise ConfigError(
            f"dataset {source!r} is of type {type(dataset).__name__}; it has to be a list of samples, "
            "or something else with a length and indexes from 0"
        )
    if len(dataset) == 0:
        raise ConfigError(f"dataset {source!r} is empty")
    return dataset  # type: ignore[no-any-return]  # just checked


def _read_file(path: Path, read: Callable[[Path], list[Any]]) -> list[Any]:
    try:
        return read(path)
    except OSError as exc:
        raise ConfigError(f"cannot read dataset {path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"dataset {path} is not UTF-8 text: {exc}") from exc


def _read_jsonl(path: Path) -> list[Any]:
    samples = []
    with path.open(encoding=_ENCODING) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    samples.append(json.loads(line.rstrip()))
                except json.JSONDecodeError as exc:
                    raise ConfigError(f"{path}:{number}: not valid JSON: {exc.msg} at column {exc.colno}") from exc
                found_at = number
    if len(samples) == 1 and isinstance(samples[0], list):
        raise ConfigError(
            f"{path}:{found_at}: the only line is a list, which would be one sample; write one sample a line, or call "
            "the file .json"
        )
    return samples


def _read_json(path: Path) -> list[Any]:
    try:
        samples = json.loads(path.read_text(encoding=_ENCODING))
    except json.JSONDecodeError as exc:
        raise ConfigError(f"{path}:{exc.lineno}: not valid JSON: {exc.msg}") from exc
    if not isinstance(samples, list):
        raise ConfigError(
            f"{path} holds {'an object' if isinstance(samples, dict) else 'one value'}; "
            "a dataset is a list of samples, as in [{...}, {...}]"
        )
    return samples


def _read_csv(path: Path) -> list[Any]:
    samples = []
    with path.open(encoding=_ENCODING, newline="") as file:
        rows = csv.reader(file, strict=True)
        try:
            columns = next(rows, [])
            if len(set(columns)) < len(columns):
                raise ConfigError(f"{path}:{rows.line_num}: two columns have the same name: {', '.join(columns)}")
            for row in filter(None, rows):  # a row of nothing is an empty line
                if len(row) != len(columns):
                    raise ConfigError(
                        f"{path}:{rows.line_num}: the row has {len(row)} values, and there are {len(columns)} columns"
                    )
                samples.append(dict(zip(columns, row, strict=True)))
        except csv.Error as exc:
            raise ConfigError(f"{path}:{rows.line_num}: not valid CSV: {exc}") from exc
    return samples


_ENCODING = "utf-8-sig"
"""UTF-8, also with the mark in front that spreadsheets write."""

_READERS: dict[str, Callable[[Path], list[Any]]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": read_parquet,
}
