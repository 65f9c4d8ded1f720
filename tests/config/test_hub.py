"""Datasets that other libraries read."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lightning_core.config import Hub, load_dataset, load_job
from lightning_core.errors import ConfigError

SAMPLES = [{"question": "1 + 1?", "answer": 2}, {"question": "2 + 2?", "answer": 4}]


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Put a library with one dataset in the place of `datasets`; return what it is asked for."""
    asked: list[tuple[Any, ...]] = []

    def load(path: str, name: str | None = None, *, split: str | None = None, revision: str | None = None) -> Any:
        asked.append((path, name, split, revision))
        if path != "owner/sums":
            raise FileNotFoundError(f"Couldn't find any data file at {path}")
        splits = {"train": SAMPLES, "test": SAMPLES[:1]} if name is None else {"train": SAMPLES}
        return splits if split is None else splits[split]

    library = ModuleType("datasets")
    library.load_dataset = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", library)
    return asked


def test_dataset_of_the_hub_is_loaded_by_its_name(datasets: list[tuple[Any, ...]]) -> None:
    hub = Hub(name="hf:owner/sums", split="test", revision="v1")
    assert load_dataset(hub, Path("/nowhere")) == SAMPLES[:1]
    assert datasets == [("owner/sums", None, "test", "v1")]


def test_only_split_need_not_be_named(datasets: list[tuple[Any, ...]]) -> None:
    assert load_dataset(Hub(name="hf:owner/sums", subset="small"), Path("/nowhere")) == SAMPLES
    assert datasets == [("owner/sums", "small", None, None)]


@pytest.mark.usefixtures("datasets")
def test_one_of_several_splits_has_to_be_named() -> None:
    message = "'hf:owner/sums' has the splits train, test; say which, as in {name: hf:owner/sums, split: train}"
    with pytest.raises(ConfigError, match=message):
        load_dataset("hf:owner/sums", Path("/nowhere"))


@pytest.mark.usefixtures("datasets")
def test_dataset_that_the_library_does_not_find_is_told_in_its_words() -> None:
    with pytest.raises(
        ConfigError, match=r"^dataset 'hf:x' cannot be loaded: FileNotFoundError: Couldn't find any data file at x$"
    ):
        load_dataset("hf:x", Path("/nowhere"))


@pytest.mark.usefixtures("datasets")
def test_config_file_names_a_dataset_with_its_options(write: Callable[..., Path], folder: Path) -> None:
    text = "agent: my_agent:solve\nalgorithm: baseline\ntrain_dataset:\n  name: hf:owner/sums\n"
    job = load_job(write("config.yaml", f"{text}  split: train\n"))
    assert job.train_dataset == SAMPLES
    with pytest.raises(ConfigError, match=rf"^{folder}/config.yaml:3: train_dataset: dataset 'hf:owner/sums' has the"):
        load_job(write("config.yaml", text))


@pytest.mark.parametrize(("source", "package"), [("hf:owner/sums", "datasets"), ("samples.parquet", "pyarrow")])
def test_library_that_cannot_be_imported_is_named_with_the_reason(
    source: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, ModuleType(package))
    monkeypatch.delitem(sys.modules, "pyarrow.parquet", raising=False)
    with pytest.raises(ConfigError, match=rf"needs the package {package}, which cannot be imported \(.*{package}.*\)"):
        load_dataset(source, tmp_path)


def test_rows_of_a_parquet_file_are_the_samples(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(SAMPLES), tmp_path / "samples.parquet")
    assert load_dataset("samples.parquet", tmp_path) == SAMPLES


def test_file_that_is_no_parquet_says_so(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "samples.parquet").write_text("no")
    with pytest.raises(ConfigError, match=rf"^{tmp_path}/samples.parquet is not a parquet file: "):
        load_dataset("samples.parquet", tmp_path)
