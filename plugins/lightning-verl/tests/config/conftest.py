import importlib.util
from pathlib import Path

import pytest

if importlib.util.find_spec("hydra") is None or importlib.util.find_spec("verl") is None:
    collect_ignore_glob = ["test_*.py"]  # verl's defaults are verl's


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that looks like a model that chats."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}')
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    return folder
