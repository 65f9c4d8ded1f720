from pathlib import Path

import pytest
from make_dataset import as_jsonl, make_datasets


@pytest.mark.parametrize("name", ["train", "val", "test"])
def test_the_generator_writes_the_files_that_are_here(name: str) -> None:
    written = Path(__file__).with_name(f"{name}.jsonl").read_text(encoding="utf-8")
    assert as_jsonl(make_datasets()[name]) == written


def test_no_question_is_in_two_datasets() -> None:
    datasets = make_datasets()
    questions = [{sample["question"] for sample in samples} for samples in datasets.values()]
    assert [len(each) for each in questions] == [40, 60, 60]
    assert len(set().union(*questions)) == 160
