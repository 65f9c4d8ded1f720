"""`python -m lightning_grpo.check --device cuda`: tries training on this machine, a line a stage.

It needs torch, transformers and the packages of this project, and no network; with peft it tries LoRA, too.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("TQDM_DISABLE", "1")  # there is a line for each stage

import torch
from lightning_tokens.learning.groups import LearnedRow, Lesson
from lightning_tokens.learning.rows import Answer
from lightning_tokens.sampling import Sampling
from lightning_tokens.testing import make_tiny_model

from lightning_core import LLM, Trainer, rollout
from lightning_core.runs.folder import runs_in
from lightning_grpo.algorithm import GRPO
from lightning_grpo.options import LossOptions, learning_options
from lightning_grpo.policy import Policy, find_device
from lightning_grpo.step import learn

PROMPTS = [[5, 6, 7], [9], [11, 12, 13, 14, 15, 16], [20, 21]]


def ask(llm: LLM, messages: list[dict[str, str]]) -> str:
    """Call a model as any program does: over HTTP, without a word about training."""
    body = {"model": llm.model, "messages": messages, "max_tokens": 12}
    request = urllib.request.Request(f"{llm.endpoint}/chat/completions", json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    if llm.api_key is not None:
        request.add_header("authorization", f"Bearer {llm.api_key}")
    with urllib.request.urlopen(request, timeout=300) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


def talk(task: Mapping[str, Any], llm: LLM) -> float:
    """Talk for two turns; return the share of the letter a in what the model said."""
    messages = [{"role": "user", "content": f"say the letter a please {task['number']}"}]
    said = ""
    for _ in range(2):
        text = ask(llm, messages)
        said += text
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "say the letter a please"}]
    return said.count("a") / max(len(said), 1)


@rollout
def letters(task: dict[str, Any], llm: LLM) -> float:
    """Say the letter a."""
    return talk(task, llm)


def samples(begin: int, end: int) -> list[dict[str, int]]:
    """Return tasks for `letters`."""
    return [{"number": number} for number in range(begin, end)]


class Killed(GRPO):
    """Kills its process after a step."""

    end_at = 0

    def report(self, metrics: Mapping[str, float | None], **more: Any) -> None:
        super().report(metrics, **more)
        if more.get("step") is not None:
            print(f"step {more['step']}", flush=True)
            if more["step"] == self.end_at:
                os.kill(os.getpid(), signal.SIGKILL)


def rows_of(policy: Policy, *, seed: int = 1) -> list[LearnedRow]:
    """Sample an answer to each prompt, and make a row of it; the first half is better than expected, the rest worse."""
    policy.begin(seed)
    answers = policy.generate(PROMPTS, Sampling(max_tokens=24, ignore_eos=True))
    return [
        LearnedRow(
            session=number,
            index=0,
            prompt_ids=prompt,
            response_ids=answer.token_ids,
            mask=[1] * len(answer.token_ids),
            logprobs=answer.logprobs,
            scores=[0.0] * len(answer.token_ids),
            answers=(Answer(0, 0, len(answer.token_ids), None, 1.0 if number < 2 else -1.0),),
            num_turns=1,
            versions=None,
        )
        for number, (prompt, answer) in enumerate(zip(PROMPTS, answers, strict=True))
    ]


def check_logprobs(model: str, device: str, folder: Path, *, bf16: bool | None = None) -> str:
    """Expect that tokens are as likely in training as they were in sampling."""
    policy = Policy(model, device=device, learning_rate=1e-3, bf16=bf16)
    began = time.monotonic()
    rows = rows_of(policy)
    speed = sum(len(row.response_ids) for row in rows) / (time.monotonic() - began)
    computed = policy.logprobs(rows)
    pairs = zip(rows, computed, strict=True)
    found = max(float((torch.tensor(row.logprobs) - each.detach().cpu()).abs().max()) for row, each in pairs)
    limit = 0.01 if policy.is_bf16 else 1e-4
    assert found <= limit, f"the log-probabilities differ by {found:.2g}, more than {limit}"
    return f"they differ by {found:.1e} at most; {speed:.0f} tokens/s in a batch of {len(rows)}"


def check_step(model: str, device: str, folder: Path, *, lora: int = 0) -> str:
    """Expect that one step makes what was rewarded likelier, and the rest less likely."""
    policy = Policy(model, device=device, lora=lora, learning_rate=1e-2 if lora else 1e-3, needs_reference=True)
    rows = rows_of(policy)
    options = LossOptions(kl=0.001)
    lesson = Lesson((), tuple(rows))
    learn(policy, [lesson], learning=learning_options("grpo", 512, None), options=options, version=2)
    after = [float(each.detach().sum()) for each in policy.logprobs(rows)]
    moved = [value - sum(row.logprobs or ()) for row, value in zip(rows, after, strict=True)]
    assert min(moved[:2]) > 0 > max(moved[2:]), f"the log-probabilities moved by {moved}"
    if lora:
        policy.save(folder / "adapter")
        other = Policy(model, device=device, lora=lora, learning_rate=1e-3)
        other.load(folder / "adapter", 2)
        again = [float(each.detach().sum()) for each in other.logprobs(rows)]
        assert max(abs(a - b) for a, b in zip(after, again, strict=True)) < 0.05, "PEFT loads another adapter"
    return f"what was rewarded: {moved[0]:+.2g}, {moved[1]:+.2g}; the rest: {moved[2]:+.2g}, {moved[3]:+.2g}"


def check_lora(model: str, device: str, folder: Path) -> str:
    """Expect the same of an adapter, and that PEFT loads what is saved."""
    if find_spec("peft") is None:
        return "not tried: peft is not installed"
    return check_step(model, device, folder, lora=8)


def check_resume(model: str, device: str, folder: Path) -> str:
    """Expect that a training goes on behind its last checkpoint after `kill -9`."""
    code = "from lightning_grpo.check import train_in_parts; import sys; train_in_parts(*sys.argv[1:])"

    def train(end_at: int) -> tuple[int, list[str]]:
        command = [sys.executable, "-c", code, model, device, str(folder / "runs"), str(end_at)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr[-2000:]
        return done.returncode, done.stdout.split("\n")[:-1]

    killed, before = train(3)
    status, after = train(0)
    assert (killed, before[-1]) == (-signal.SIGKILL, "step 3"), f"it was to be killed after step 3; it said {before}"
    assert status == 0, f"it was to succeed; its status is {status}"
    assert after == ["step 2", "step 3", "step 4"], f"it was to go on behind step 2, as said again; it said {after}"
    return "killed after step 3, and gone on behind the checkpoint of step 2"


def train_in_parts(model: str, device: str, runs: str, end_at: str) -> None:
    """Train for four steps, or until it is killed; go on where there is a run."""
    algorithm = Killed(
        model=model,
        device=device,
        steps=4,
        batch_size=4,
        group_size=4,
        learning_rate=1e-3,
        max_tokens=160,
        validate_every=2,
    )
    algorithm.end_at = int(end_at)
    root = Path(runs)
    there = runs_in(root) if root.exists() else []
    trainer = Trainer(algorithm=algorithm, run_dir=there[0] if there else root, n_runners=16)
    try:
        trainer.fit(letters, samples(0, 16))
    finally:
        asyncio.run(trainer.store.aclose())


def check_learning(model: str, device: str, folder: Path) -> str:
    """Expect that a short training raises the reward of tasks that it has not seen."""
    algorithm = GRPO(
        model=model,
        device=device,
        steps=15,
        batch_size=8,
        group_size=8,
        learning_rate=1e-2,
        max_tokens=160,
    )
    os.chdir(folder)  # where checkpoints go
    result = Trainer(algorithm=algorithm, n_runners=32).fit(letters, samples(0, 64), test_dataset=samples(100, 132))
    found = None if result.comparison is None else result.comparison.difference
    assert found is not None, f"the run has no comparison; it {result.status}"
    assert (found.low or 0.0) > 0, f"the held-out reward did not rise for certain: {found}"
    return f"held-out reward {found}"


STAGES: dict[str, Callable[[str, str, Path], str]] = {
    "logprobs": check_logprobs,
    "step": check_step,
    "lora": check_lora,
    "resume": check_resume,
    "learning": check_learning,
}


def main() -> int:
    """Run the stages; return 0 where none has failed."""
    parser = argparse.ArgumentParser(prog="python -m lightning_grpo.check", description=__doc__)
    parser.add_argument("--device", default=find_device(), help="as torch names it (default: the fastest here)")
    parser.add_argument("--only", help="the stages to run, with commas (default: all)")
    given = parser.parse_args()
    names = given.only.split(",") if given.only else list(STAGES)
    if unknown := set(names) - STAGES.keys():
        parser.error(f"--only has {min(unknown)!r}; the stages are {', '.join(STAGES)}")
    print(f"torch {torch.__version__} on {given.device}", flush=True)
    failed = False
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            model = str(make_tiny_model(Path(folder) / "model", hidden_size=128))
            began = time.monotonic()
            try:
                said = f"ok      {STAGES[name](model, given.device, Path(folder))}"
            except Exception as exc:
                failed, said = True, f"FAILED  {type(exc).__name__}: {exc}"
            os.chdir("/")
            print(f"{name:10}{time.monotonic() - began:6.0f} s  {said}", flush=True)
    if torch.cuda.is_available():
        print(f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB of GPU memory at most")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
