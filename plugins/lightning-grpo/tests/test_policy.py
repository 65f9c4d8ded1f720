"""The model that is trained, and one step of it."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from learning_toys import failed, faulty, options, scored
from lightning_grpo.check import stages_of
from lightning_grpo.options import learning_options
from lightning_grpo.policy import Policy
from lightning_grpo.step import learn
from lightning_tokens.learning.groups import Lesson, learn_from_group
from lightning_tokens.testing import make_tiny_model
from policy_toys import rows_of, told
from transformers import AutoModelForCausalLM, GenerationConfig

from lightning_core.errors import AlgorithmError, ConfigError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_model(tmp_path_factory.mktemp("model"))
    GenerationConfig(eos_token_id=[2, 0], repetition_penalty=1.1).save_pretrained(folder)
    return folder


def policy_of(model: Path, **more: object) -> Policy:
    return Policy(str(model), **{"device": "cpu", "learning_rate": 1e-3, **more})


@pytest.mark.parametrize("bf16", [False, True])
def test_tokens_are_as_likely_in_training_as_in_sampling(model: Path, bf16: bool) -> None:
    policy = policy_of(model, bf16=bf16)
    rows = rows_of(policy)
    for row, computed in zip(rows, policy.logprobs(rows), strict=True):
        assert torch.allclose(torch.tensor(row.logprobs), computed, atol=0.01 if bf16 else 1e-4)


@pytest.mark.parametrize("lora", [0, 8])
def test_one_step_makes_what_was_rewarded_likelier_and_an_adapter_is_loaded_again(
    model: Path, tmp_path: Path, lora: int
) -> None:
    more = {"lora": lora, "learning_rate": 1e-2 if lora else 1e-3}
    policy, other = policy_of(model, needs_reference=True, **more), policy_of(model, **more)
    rows = rows_of(policy)
    learn(policy, [Lesson((), tuple(rows))], options=told(kl=0.001), version=2)
    after = [float(each.detach().sum()) for each in policy.logprobs(rows)]
    moved = [value - sum(row.logprobs or ()) for row, value in zip(rows, after, strict=True)]
    assert min(moved[:2]) > 0 > max(moved[2:])
    policy.save(tmp_path / "saved")
    other.load(tmp_path / "saved", 2)
    assert [float(each.detach().sum()) for each in other.logprobs(rows)] == pytest.approx(after, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["training", "lora"])
def test_a_stage_of_the_check_passes(stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "log-probabilities differ by" in stages_of("cpu")[stage](tmp_path)


@pytest.mark.parametrize("loss", ["rollout", "token", "constant"])
def test_gradients_are_the_same_however_many_tokens_are_computed_at_once(model: Path, loss: str) -> None:
    found = []
    for batch_tokens in (8192, 1):
        policy = policy_of(model)
        rows = rows_of(policy)
        rows[0].mask[3:7] = [0] * 4
        lessons = [Lesson((), tuple(rows))]
        found.append(learn(policy, lessons, options=told(loss=loss), version=1, batch_tokens=batch_tokens))
    assert found[0] == pytest.approx(found[1], rel=1e-4, abs=1e-6)
    assert found[0]["actor/grad_norm"] > 0


def test_numbers_beside_the_loss_are_means_over_tokens_whatever_divides_the_loss(model: Path) -> None:
    found = {}
    for loss in ("token", "constant"):
        policy = policy_of(model, needs_reference=True)
        rows = rows_of(policy)
        for row in rows:
            row.logprobs[:] = [value + 0.5 for value in row.logprobs]
        found[loss] = learn(policy, [Lesson((), tuple(rows))], options=told(loss=loss, kl=0.1), version=1)
    assert found["constant"]["training/logprob_difference"] == pytest.approx(0.5, abs=1e-4)
    for name in ("training/logprob_difference", "actor/clip_fraction", "actor/entropy_estimate"):
        assert found["constant"][name] == pytest.approx(found["token"][name], rel=1e-4)


def test_what_is_saved_is_the_model_with_what_its_author_likes(model: Path, tmp_path: Path) -> None:
    policy = policy_of(model)
    learn(policy, [Lesson((), tuple(rows_of(policy)))], options=told(), version=1)
    policy.save(tmp_path / "saved")
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert saved.generation_config.eos_token_id == [2, 0]
    assert saved.generation_config.repetition_penalty == 1.1
    other = policy_of(model)
    other.load(tmp_path / "saved", 1)
    assert other.generator.fingerprint() == policy.generator.fingerprint() != policy_of(model).generator.fingerprint()


def test_what_is_saved_has_the_precision_that_it_came_in_and_says_so(model: Path, tmp_path: Path) -> None:
    came = Path(shutil.copytree(model, tmp_path / "came"))
    AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).save_pretrained(came)
    policy_of(came).save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["dtype"] == "bfloat16"
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype="auto").dtype == torch.bfloat16
    policy_of(tmp_path / "saved").save(tmp_path / "again")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("came", "again")]
    assert sizes[0] == sizes[1]


@pytest.mark.skipif(sys.platform == "win32", reason="needs resource")
def test_a_full_disk_is_named_and_what_was_there_stays(model: Path, tmp_path: Path) -> None:
    import resource

    policy = policy_of(model)
    learn(policy, [Lesson((), tuple(rows_of(policy)))], options=told(), version=1)
    policy.save(tmp_path / "best")
    policy.save_state(tmp_path / "state.pt")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, before[1]))
    try:
        for save, name in ((policy.save, "best"), (policy.save_state, "state.pt")):
            with pytest.raises(OSError, match=f"{name}.new cannot be written .*MiB are free there"):
                save(tmp_path / name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    policy_of(model).load(tmp_path / "best", 1)
    assert policy_of(model).load_state(tmp_path / "state.pt")["version"] == 1


def test_a_state_goes_on_with_the_optimizer_s_own(model: Path, tmp_path: Path) -> None:
    policy, other = policy_of(model), policy_of(model)
    rows = rows_of(policy)
    for version in (1, 2):
        learn(policy, [Lesson((), tuple(rows))], options=told(), version=version)
        if version == 1:
            policy.save_state(tmp_path / "state.pt", best=(1, 0.5, "here"))
    assert other.load_state(tmp_path / "state.pt")["best"] == (1, 0.5, "here")
    assert other.version == 1
    learn(other, [Lesson((), tuple(rows))], options=told(), version=2)
    assert other.generator.fingerprint() == policy.generator.fingerprint()


def test_the_reference_stays_what_the_training_began_with(model: Path) -> None:
    for lora in (0, 4):
        policy = policy_of(model, lora=lora, learning_rate=1e-2, needs_reference=True)
        rows = rows_of(policy)
        before = torch.cat(policy.reference_logprobs(rows))
        found = learn(policy, [Lesson((), tuple(rows))], options=told(kl=0.1), version=1)
        assert found["actor/kl"] == pytest.approx(0, abs=1e-6)
        assert torch.equal(torch.cat(policy.reference_logprobs(rows)), before)
        assert not torch.allclose(torch.cat(policy.logprobs(rows)), before, atol=1e-3)


def test_a_fault_is_not_there_a_failure_has_its_worth_and_without_tokens_only_the_reward_counts() -> None:
    own = replace(learning_options("grpo", 512, {"on_failure": -1.0}), needs_logprobs=False)
    lesson = learn_from_group(
        [scored(1.0, told=own), scored(0.0, told=own), failed(([1], [2]), told=own), faulty(own)], options=own
    )
    assert lesson.dropped is None
    advantages = {row.session: row.answers[0].advantage for row in lesson.rows}
    assert advantages == pytest.approx({0: 1.0, 1: 0.0, 2: -1.0}, abs=1e-5), "of 1, 0 and -1; the fault is not there"
    dropped = learn_from_group([scored(1.0), failed(([1], [2])), faulty()], options=options())
    assert dropped.dropped is not None, "by default a failure is not there either"


def test_a_gradient_that_is_not_finite_ends_the_run_and_changes_nothing(model: Path) -> None:
    policy = policy_of(model)
    rows = rows_of(policy)
    before = policy.generator.fingerprint()
    rows[0].logprobs[0] = float("nan")
    with pytest.raises(AlgorithmError, match=r"the loss is nan, .*; try a smaller learning_rate"):
        learn(policy, [Lesson((), tuple(rows))], options=told(), version=1)
    assert policy.generator.fingerprint() == before


def test_a_folder_without_a_tokenizer_is_refused(model: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        shutil.copy(model / name, tmp_path / name)
    with pytest.raises(ConfigError, match="where there is no tokenizer; save the model's own there, too"):
        policy_of(tmp_path)


def test_a_model_without_a_chat_template_is_refused(model: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(model, tmp_path / "model"))
    (other / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="no chat template to make prompts of messages with; take its instruct"):
        policy_of(other)


def test_a_model_of_images_is_refused_in_one_sentence(model: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(model, tmp_path / "model"))
    told = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**told, "vision_config": {"depth": 2}}))
    with pytest.raises(ConfigError, match="a model of images; grpo trains text alone"):
        policy_of(other)
