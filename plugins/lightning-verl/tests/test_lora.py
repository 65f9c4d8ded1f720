"""From the checkpoint of an adapter to a folder that PEFT loads. How FSDP cuts weights, whole trainings show."""

import json
from pathlib import Path

import pytest
import torch
from lightning_tokens.testing import make_tiny_model
from lightning_verl.lora import write_adapter
from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from lightning_core.errors import AlgorithmError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tiny_model(tmp_path_factory.mktemp("model")))


@pytest.fixture
def checkpoint(model: str, tmp_path: Path) -> Path:
    """Write what verl saves of an adapter that has been trained."""
    torch.manual_seed(1)
    adapted = get_peft_model(
        AutoModelForCausalLM.from_pretrained(model),
        LoraConfig(r=4, lora_alpha=32, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM"),
    )
    folder = tmp_path / "actor"
    folder.mkdir()
    trained = {name: weight for name, weight in adapted.state_dict().items() if "lora_" in name}
    torch.save(trained, folder / "model_world_size_1_rank_0.pt")
    (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 1}))
    (folder / "lora_train_meta.json").write_text(json.dumps({"r": 4, "lora_alpha": 32, "task_type": "CAUSAL_LM"}))
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    return folder


def test_peft_loads_it_and_answers_as_the_model_that_was_trained(checkpoint: Path, model: str) -> None:
    folder = checkpoint / "lora_adapter"
    write_adapter(checkpoint, folder, base=model)
    tokens = torch.arange(20)[None]
    trained = AutoModelForCausalLM.from_pretrained(checkpoint.parent / "merged")
    loaded = AutoPeftModelForCausalLM.from_pretrained(folder)
    torch.testing.assert_close(loaded(tokens).logits, trained(tokens).logits, atol=1e-4, rtol=1e-4)
    base = AutoModelForCausalLM.from_pretrained(model)
    assert not torch.allclose(base(tokens).logits, trained(tokens).logits, atol=1e-2)


def test_everything_but_the_weights_is_as_in_the_adapter_it_began_with(checkpoint: Path, model: str) -> None:
    start = checkpoint.parent / "start"
    LoraConfig(r=4, lora_alpha=7, use_rslora=True, target_modules=["q_proj"]).save_pretrained(start)
    write_adapter(checkpoint, checkpoint / "lora_adapter", base=model, start=str(start))
    written = json.loads((checkpoint / "lora_adapter" / "adapter_config.json").read_text())
    assert [written[name] for name in ("lora_alpha", "use_rslora", "base_model_name_or_path")] == [7, True, model]


def test_a_part_on_another_machine_is_named(checkpoint: Path, model: str) -> None:
    (checkpoint / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 2}))
    (checkpoint / "model_world_size_1_rank_0.pt").rename(checkpoint / "model_world_size_2_rank_0.pt")
    with pytest.raises(AlgorithmError, match=r"1 of 2 parts on this machine, model_world_size_2_rank_1\.pt is missing"):
        write_adapter(checkpoint, checkpoint / "lora_adapter", base=model)
