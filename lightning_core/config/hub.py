"""Datasets that other libraries read: parquet files, and those of the Hugging Face hub."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator
from pydantic_core import PydanticCustomError

from lightning_core.errors import ConfigError

HUB_PREFIX = "hf:"


class Hub(BaseModel):
    """A dataset of the Hugging Face hub, and which part of it."""

    model_config = ConfigDict(extra="forbid")

    name: str
    """`hf:` and the dataset's name."""
    subset: str | None = None
    """The part that the library calls a config; None for its default."""
    split: str | None = None
    """Such as `train`, or `test[:100]`. May be left out where there is only one."""
    revision: str | None = None
    """A branch, a tag or a commit; None for the newest."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not name.startswith(HUB_PREFIX) or name == HUB_PREFIX:
            raise PydanticCustomError(
                "hub_name", "options are for datasets of the Hugging Face hub, as in {name: hf:gsm8k, split: train}"
            )
        return name

    def load(self) -> Any:
        """Load it, from the library's cache or from the hub.

        Raises:
            ConfigError: When the library is not installed, does not find it, or when it has several splits.
        """
        library = _library("datasets", "load_dataset", needed_by=f"dataset {self.name!r}")
        try:
            found = library.load_dataset(
                self.name.removeprefix(HUB_PREFIX), self.subset, split=self.split, revision=self.revision
            )
        except Exception as exc:  # the library, and those below it, raise whatever they like
            raise ConfigError(f"dataset {self.name!r} cannot be loaded: {type(exc).__name__}: {exc}") from exc
        if self.split is not None:
            return found
        if len(found) != 1:
            raise ConfigError(
                f"dataset {self.name!r} has the splits {', '.join(map(str, found))}; say which, as in "
                f"{{name: {self.name}, split: {next(iter(found), 'train')}}}"
            )
        return next(iter(found.values()))


def read_parquet(path: Path) -> list[Any]:
    """Read a parquet file: a dict for each row.

    Raises:
        ConfigError: When pyarrow is not installed, or the file is no parquet.
        OSError: When the file cannot be read.
    """
    library = _library("pyarrow.parquet", "read_table", needed_by=str(path))
    with path.open("rb") as file:
        try:
            rows: list[Any] = library.read_table(file).to_pylist()
        except ValueError as exc:  # ArrowInvalid is one
            raise ConfigError(f"{path} is no parquet file: {exc}") from exc
    return rows


def _library(module: str, function: str, *, needed_by: str) -> ModuleType:
    package = module.partition(".")[0]
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.partition(".")[0] != package:
            raise ConfigError(f"{needed_by} needs the package {package}, which cannot be imported: {exc}") from exc
        raise ConfigError(
            f"{needed_by} needs the package {package}, which is not installed; install it: pip install {package}"
        ) from exc
    except ImportError as exc:
        raise ConfigError(f"{needed_by} needs the package {package}, which cannot be imported: {exc}") from exc
    if not hasattr(found, function):
        place = getattr(found, "__file__", None) or ", ".join(getattr(found, "__path__", ()))
        raise ConfigError(
            f"{needed_by} needs the package {package}, and {place} is found in its place; "
            f"give that another name, and install the package where it is missing: pip install {package}"
        )
    return found
