"""`agl export RUN --to model`: the model that a run has trained, as a folder of its own."""

import re
import shutil
from pathlib import Path

from lightning_core.errors import RunFolderError
from lightning_core.runs.folder import RunFolder
from lightning_core.runs.recording import read_best
from lightning_core.types import LLM


def model(run: RunFolder, target: Path) -> str:
    """Write the newest model that a run has saved: in Hugging Face's form, or a LoRA adapter in PEFT's.

    Args:
        run: The run.
        target: The folder to make.

    Returns:
        What it is.

    Raises:
        RunFolderError: When the run has saved none, or in a form that nothing here can read.
    """
    saved = _saved(run)
    if (saved / "adapter_config.json").exists():
        shutil.copytree(saved, target)
        return f"the LoRA adapter of {saved.parent.parent.name}"
    if not (saved / "config.json").exists():
        raise RunFolderError(
            f"{saved} has no model in Hugging Face's form; to make one of what FSDP or Megatron has saved, see "
            "python -m verl.model_merger merge --help"
        )
    shutil.copytree(saved, target)
    return "a model in Hugging Face's form"


def _saved(run: RunFolder) -> Path:
    """Return the folder of the newest weights, also where the run's folder was moved."""
    best = (read_best(run.best_file) or {}).get("main_llm")
    if not isinstance(best, LLM):
        raise RunFolderError(f"run {run.run_id} has not saved a model")
    inside = re.split(r"(?:^|/)checkpoints/", best.model)[-1]
    for folder in (run.path / "checkpoints" / inside, Path(best.model)):
        if folder.is_dir():
            return folder
    raise RunFolderError(
        f"the model of run {run.run_id} is {best.model!r}, which is not a folder here: it was not saved, or was removed"
    )
