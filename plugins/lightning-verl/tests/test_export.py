"""`agl export RUN --to model`: out of each form that a checkpoint has, a folder that can be served."""

import json
from pathlib import Path

import pytest
from lightning_tokens.export import model as export_model
from lightning_tokens.testing import make_tiny_model

from lightning_core.errors import RunFolderError
from lightning_core.runs.folder import RunFolder

SAVED = "checkpoints/k/global_step_2/actor"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "run-1f")


def name_best(run: RunFolder, folder: str) -> None:
    best = {"resource_type": "llm", "endpoint": "http://127.0.0.1:1/v1", "model": folder}
    run.best_file.write_text(json.dumps({"main_llm": best}))


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_model_is_copied_with_all_that_belongs_to_it(run: RunFolder, tmp_path: Path, is_moved: bool) -> None:
    saved = make_tiny_model(run.path / SAVED / "huggingface")
    name_best(run, f"/checkpoints/runs/{run.run_id}/{SAVED}/huggingface" if is_moved else str(saved))
    assert export_model(run, tmp_path / "out") == "a model in Hugging Face's form"
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written >= {"config.json", "model.safetensors", "generation_config.json", "chat_template.jinja"}


def test_an_adapter_is_copied(run: RunFolder, tmp_path: Path) -> None:
    adapter = run.path / SAVED / "lora_adapter"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text("{}")
    name_best(run, str(adapter))
    assert export_model(run, tmp_path / "out") == "the LoRA adapter of global_step_2"
    assert (tmp_path / "out" / "adapter_config.json").exists()


@pytest.mark.parametrize(
    ("best", "problem"),
    [
        (None, "run run-1f has not saved a model"),
        ("tiny:step-3", "is 'tiny:step-3', which is not a folder here: it was not saved, or was removed"),
        (SAVED, "has no model in Hugging Face's form; to make one of what FSDP"),
    ],
)
def test_a_run_without_a_model_that_can_be_written_is_refused(
    run: RunFolder, tmp_path: Path, best: str | None, problem: str
) -> None:
    (run.path / SAVED / "dist_ckpt").mkdir(parents=True)
    if best is not None:
        name_best(run, best)
    with pytest.raises(RunFolderError, match=problem):
        export_model(run, tmp_path / "out")
