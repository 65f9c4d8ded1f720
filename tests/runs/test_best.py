"""The best resources in a file: to the letter, and without keys."""

from pathlib import Path

import pytest

from lightning_core.errors import RunFolderError
from lightning_core.runs.recording import read_best, write_best
from lightning_core.types import LLM, NamedResources, PromptTemplate, ProxyLLM

RESOURCES: NamedResources = {
    "main_prompt": PromptTemplate(template="api_key=abc stays: {{ é }}\n", engine="jinja"),
    "main_llm": LLM(
        endpoint="http://localhost/v1",
        model="small",
        api_key="sk-very-secret-key",
        sampling_parameters={"temperature": 0.5, "extra_headers": {"Authorization": "Bearer very-secret"}},
    ),
    "other_llm": ProxyLLM(endpoint="http://localhost/v1", model="small"),
}


def test_resources_come_back_with_the_keys_that_the_first_ones_have(tmp_path: Path) -> None:
    path = tmp_path / "best_resources.json"
    write_best(path, RESOURCES)
    assert "very-secret" not in path.read_text()
    assert read_best(path, RESOURCES) == RESOURCES
    alone = read_best(path)
    assert alone is not None
    assert alone["main_prompt"] == RESOURCES["main_prompt"]
    assert isinstance(alone["main_llm"], LLM)
    assert alone["main_llm"].api_key is None


def test_no_file_is_none_and_a_damaged_one_says_so(tmp_path: Path) -> None:
    path = tmp_path / "best_resources.json"
    assert read_best(path) is None
    path.write_text('{"main_prompt": {"resource_type": "poem"}}')
    with pytest.raises(RunFolderError, match=r"best_resources\.json is damaged: .*; remove it"):
        read_best(path)
