"""What is wrong with a training is said before a model is loaded: what, which, got, what next."""

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from learning_toys import scored
from lightning_grpo import GRPO, RLOO
from lightning_grpo.options import learning_options
from lightning_tokens.testing import letter_tasks, make_tiny_model, say_letters

from lightning_core import LLM, InMemoryLightningStore, Trainer, rollout
from lightning_core.algorithm import Algorithm
from lightning_core.errors import ConfigError
from lightning_core.registry import default_registry

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model": ""}, "grpo needs the option 'model': a folder, or a name on the Hugging Face hub"),
    ({"model": "/nowhere"}, "model is '/nowhere', and there is no such folder"),
    ({"steps": 0}, "grpo: steps is 0; it has to be more than 0"),
    ({"advantage": "gae"}, "grpo: advantage is 'gae'; it has to be 'grpo', 'dr_grpo' or 'rloo'"),
    ({"loss": "mean"}, "grpo: loss is 'mean'; it has to be 'rollout', 'token' or 'constant'"),
    ({"clip": 2}, r"clip is 2; it is a number between 0 and 1, or two, below and above: \[0.2, 0.28\]"),
    ({"clip": [0.2]}, r"clip is \[0.2\]; it is a number between 0 and 1"),
    ({"group_size": 1}, "group_size is 1; the rollouts of a task are compared with each other, so take 2 or more"),
    ({"updates": 1000}, "updates is 1000, and a step has 64 rollouts; take fewer"),
    ({"generator": "vllm"}, "generator is 'vllm'; it is 'module', or the URL of a vLLM server"),
    ({"lora": -1}, "grpo: lora is -1; it has to be 0 or more"),
    ({"kl": -1}, "grpo: kl is -1; it has to be 0 or more"),
    ({"learning_rate": "fast"}, "grpo: learning_rate is 'fast'; it has to be a number"),
    ({"learning_rate": float("inf")}, "grpo: learning_rate is inf; it has to be a finite number"),
    ({"learning": {"on_failure": float("nan")}}, "learning: on_failure is .*; it has to be 'drop' or a finite number"),
    ({"learning": {"overlong_penalty": 2.0}}, "overlong_penalty is 2.0: it has an effect with overlong_buffer only"),
    ({"learning": {"overlong_buffer": 2048}}, "overlong_buffer is 2048: it is the last part of the 2048 tokens"),
    ({"learning": {"overlong_buffer": 8, "credit": "per_call"}}, "learning.overlong_buffer is 8: it lowers the reward"),
    ({"learning": {"credits": "final"}}, "learning has no option 'credits'; .*Did you mean 'credit'"),
    ({"learning": {"call_discount": 0.5}}, "call_discount is 0.5: it has an effect with credit=discounted only"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_a_wrong_option_is_one_clear_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GRPO(**{"model": "tiny", **options})


def test_by_name_an_option_that_there_is_not_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"has no option 'stepps'; .*Did you mean 'steps'"):
        default_registry().build("algorithms", {"name": "grpo", "model": "x", "stepps": 3}, expected=Algorithm)


def test_both_names_are_of_this_package_and_rloo_compares_with_the_others() -> None:
    for name, cls in (("grpo", GRPO), ("rloo", RLOO)):
        made = default_registry().build("algorithms", {"name": name, "model": "x"}, expected=GRPO)
        assert type(made) is cls
        assert made.options.learning.estimator == name
    assert not GRPO("x", advantage="dr_grpo").options.learning.norm_by_std
    with pytest.raises(ConfigError, match="advantage is 'grpo', and rloo's is 'rloo'"):
        RLOO("x", advantage="grpo")


def test_a_conversation_loses_reward_towards_the_limit_that_it_is_cut_at() -> None:
    told = replace(learning_options("grpo", 16, {"overlong_buffer": 8}), needs_logprobs=False)
    prompt = list(range(10))
    assert [scored(1.0, (prompt, [1] * n), told=told).penalty for n in (2, 6)] == [-0.5, -1.0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="has what is asked for")
def test_a_device_that_is_not_there_is_named(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path)
    with pytest.raises(ConfigError, match=f"model '{model}' cannot be loaded on cuda: .*CUDA"):
        Trainer(algorithm=GRPO(str(model), device="cuda")).fit(agent, list(range(8)))


@rollout
def agent(task: int) -> float:
    return 1.0


def test_too_few_tasks_are_refused_before_the_model_is_loaded() -> None:
    with pytest.raises(ConfigError, match="batch_size is 8, and train_dataset has 3 tasks; give more"):
        Trainer(algorithm=GRPO("no-such-model")).fit(agent, [1, 2, 3])


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"model '{tmp_path}' cannot be loaded on cpu: "):
        Trainer(algorithm=GRPO(str(tmp_path), device="cpu")).fit(agent, list(range(8)))


def test_a_generator_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = str(make_tiny_model(tmp_path / "model"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"generator is {url}: .* cannot be reached: .*; start a vLLM server of"):
            Trainer(algorithm=GRPO(model, device="cpu", generator=url)).fit(agent, list(range(8)))


@rollout
def content(task: dict[str, Any], llm: LLM) -> float:
    say_letters(task, llm)
    return 1.0


async def test_a_step_without_a_difference_of_rewards_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    model = make_tiny_model(tmp_path / "model")
    algorithm = GRPO(str(model), steps=2, batch_size=2, group_size=2, max_tokens=160, device="cpu")
    with caplog.at_level("WARNING", "lightning_grpo.training"):
        await Trainer(algorithm=algorithm, n_runners=4).fit_async(content, letter_tasks(0, 4))
    told = [each.message for each in caplog.records if "rewards_equal" in each.message]
    assert len(told) == 1
    assert "step=1: within each group all rewards are the same, so nothing is learned" in told[0]


@rollout
def first_step_is_best(task: dict[str, Any], llm: LLM) -> float:
    reward = say_letters(task, llm)
    return float(llm.model.endswith("step-1")) if task["number"] >= 100 else reward


async def test_the_calls_of_the_best_weights_say_the_step_that_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = InMemoryLightningStore()
    options = {"steps": 2, "batch_size": 2, "group_size": 2, "max_tokens": 160, "validate_every": 1, "device": "cpu"}
    algorithm = GRPO(str(make_tiny_model(tmp_path / "model")), **options)
    trainer = Trainer(algorithm=algorithm, store=store, n_runners=4)
    held_out = {"val_dataset": letter_tasks(100, 101), "test_dataset": letter_tasks(200, 201)}
    await trainer.fit_async(first_step_is_best, letter_tasks(0, 4), **held_out)
    found = {}
    for each in await store.query_rollouts():
        spans = await store.query_spans(each.rollout_id)
        versions = {
            span.attributes[name] for span in spans if (name := "agentlightning.weight_version") in span.attributes
        }
        found.setdefault((each.mode, each.metadata["step"]), set()).update(versions)
    first = {("test", 0): {"0"}, ("val", 0): {"0"}, ("train", 0): {"0"}, ("val", 1): {"1"}, ("train", 1): {"1"}}
    assert found == {**first, ("val", 2): {"2"}, ("test", 1): {"1"}}


@rollout
def all_but_one_fail_after_a_step(task: dict[str, Any], llm: LLM) -> float:
    reward = say_letters(task, llm)
    if task["number"] > 100 and "step-" in llm.model:
        raise ValueError("the answer is not what it has to be")
    return (0.9 if "step-" in llm.model else 0.5) if task["number"] >= 100 else reward


async def test_weights_that_lose_the_hard_samples_are_not_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    algorithm = GRPO(str(make_tiny_model(tmp_path / "model")), steps=1, batch_size=2, group_size=2, max_tokens=160)
    fit = Trainer(algorithm=algorithm, n_runners=4).fit_async
    result = await fit(all_but_one_fail_after_a_step, letter_tasks(0, 4), val_dataset=letter_tasks(100, 104))
    assert result.metrics["val/reward"] == 0.9
    assert result.best_resources == result.initial_resources


async def test_spans_that_a_resumed_run_learns_from_are_kept(tmp_path: Path) -> None:
    trainer = Trainer(algorithm=GRPO(str(make_tiny_model(tmp_path)), validate_every=6), keep_spans=4)
    with pytest.raises(ConfigError, match=r"keep_spans is 4; .* keep those of 5 or more, or make validate_every"):
        await trainer.fit_async(first_step_is_best, letter_tasks(0, 8))


async def test_a_run_of_one_name_is_not_gone_on_with_by_the_other(tmp_path: Path) -> None:
    store = InMemoryLightningStore()
    keys = []
    for cls in (GRPO, RLOO, RLOO):
        with pytest.raises(ConfigError, match="cannot be loaded on cpu"):
            await Trainer(algorithm=cls(str(tmp_path), device="cpu"), store=store).fit_async(agent, list(range(8)))
        keys.append((await store.load_state("grpo"))["key"])
    assert keys[0] != keys[1] == keys[2]
