"""Datasets from files and from code."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_core.config import load_dataset
from lightning_core.errors import ConfigError
from lightning_core.types import Dataset

SAMPLES = [{"question": "1 + 1?", "answer": "2"}, {"question": "Größe?", "answer": "groß"}]


def samples_of(dataset: Dataset[Any]) -> list[Any]:
    return [dataset[index] for index in range(len(dataset))]


FILES = {
    "samples.jsonl": '{"question": "1 + 1?", "answer": "2"}\n\n{"question": "Größe?", "answer": "groß"}',
    "samples.json": '[{"question": "1 + 1?", "answer": "2"},\n {"question": "Größe?", "answer": "groß"}]',
    "samples.csv": 'question,answer\n1 + 1?,2\n"Größe?",groß\n',
}


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("name", FILES)
def test_each_kind_of_file_gives_its_samples(write: Callable[..., Path], folder: Path, name: str, mark: str) -> None:
    write(name, mark + FILES[name])
    assert samples_of(load_dataset(name, folder)) == SAMPLES


def test_path_may_be_absolute_or_in_a_folder_below(write: Callable[..., Path], folder: Path) -> None:
    (folder / "data").mkdir()
    path = write("data/samples.json", FILES["samples.json"])
    assert samples_of(load_dataset("data/samples.json", folder)) == SAMPLES
    assert samples_of(load_dataset(str(path), Path("/nowhere"))) == SAMPLES


def test_samples_themselves_are_a_dataset(folder: Path) -> None:
    assert samples_of(load_dataset([1, "two"], folder)) == [1, "two"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.jsonl", None, "cannot read dataset {folder}/missing.jsonl: No such file or directory"),
        ("a.jsonl", '{"a": 1}\n{"a": \n', "{folder}/a.jsonl:2: not valid JSON: Expecting value"),
        ("a.jsonl", '{"a": 1}\n{"a": 2\n', "{folder}/a.jsonl:2: not valid JSON: Expecting ',' delimiter at column 8"),
        ("a.json", "[1,\n 2\n 3]", "{folder}/a.json:3: not valid JSON: Expecting ',' delimiter"),
        ("a.json", '{"a": 1}', "{folder}/a.json holds an object; a dataset is a list of samples"),
        ("a.json", '"a"', "{folder}/a.json holds one value; a dataset is a list of samples"),
        (
            "a.jsonl",
            '\n[{"a": 1}, {"a": 2}]\n',
            "{folder}/a.jsonl:2: the only line is a list, which would be one sample; ",
        ),
        ("a.csv", "a,b\n1,2\n1\n", "{folder}/a.csv:3: the row has 1 values, and there are 2 columns"),
        ("a.csv", "a,b\n1,2,3\n", "{folder}/a.csv:2: the row has 3 values, and there are 2 columns"),
        ("a.csv", 'a,b\n1,"2" 3\n', "{folder}/a.csv:2: not valid CSV: ',' expected after '\"'"),
        ("a.csv", 'a,b\n1,"2\n', "{folder}/a.csv:2: not valid CSV: unexpected end of data"),
        ("a.csv", "a,b,a\n1,2,3\n", "{folder}/a.csv:1: two columns have the same name: a, b, a"),
        ("a.csv", "a,b\n", "dataset 'a.csv' is empty"),
        ("a.jsonl", "", "dataset 'a.jsonl' is empty"),
        ("a.json", "[]", "dataset 'a.json' is empty"),
        ("a.jsonl", '"ä"'.encode("latin-1"), "dataset {folder}/a.jsonl is not UTF-8 text: "),
        ("a.json", '["ä"]'.encode("latin-1"), "dataset {folder}/a.json is not UTF-8 text: "),
        ("a.csv", "ä\n1\n".encode("latin-1"), "dataset {folder}/a.csv is not UTF-8 text: "),
        ("a.txt", "1\n", "dataset 'a.txt' is neither a .jsonl, .json, .csv, .parquet file nor a "),
    ],
)
def test_file_that_is_no_dataset_says_where_and_what(
    write: Callable[..., Path], folder: Path, name: str, content: str | bytes | None, message: str
) -> None:
    if content is not None:
        write(name, content)
    with pytest.raises(ConfigError) as raised:
        load_dataset(name, folder)
    assert str(raised.value).startswith(message.replace("{folder}", str(folder)))


@pytest.fixture
def my_data(write: Callable[..., Path], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        "my_data.py",
        "SAMPLES = [1, 2]\nEMPTY = ()\nTEXT = 'abc'\nNUMBER = 5\n"
        "def make(): return SAMPLES\ndef numbers(): yield 1\ndef broken(): 1 / 0\ndef mapping(): return {0: 'a'}\n",
    )
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.usefixtures("my_data")
@pytest.mark.parametrize("source", ["my_data:SAMPLES", "my_data:make"])
def test_object_and_function_of_a_module_are_datasets(folder: Path, source: str) -> None:
    assert samples_of(load_dataset(source, folder)) == [1, 2]


@pytest.mark.usefixtures("my_data")
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("my_data:EMPTY", "dataset 'my_data:EMPTY' is empty"),
        ("my_data:TEXT", "dataset 'my_data:TEXT' is of type str; it has to be a list of samples, "),
        ("my_data:NUMBER", "dataset 'my_data:NUMBER' is of type int; it has to be a list of samples, "),
        ("my_data:numbers", "dataset 'my_data:numbers' is of type generator; it has to be a list of samples, "),
        ("my_data:broken", "dataset 'my_data:broken' cannot be loaded: ZeroDivisionError: division by zero"),
        ("my_data:mapping", "dataset 'my_data:mapping' is of type dict; it has to be a list of samples, "),
    ],
)
def test_object_of_a_module_that_is_no_dataset_is_refused(folder: Path, source: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_dataset(source, folder)
    assert str(raised.value).startswith(message)
