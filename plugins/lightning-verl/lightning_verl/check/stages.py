"""What each stage does, in a process of its own: `python -m lightning_verl.check.stages NAME FOLDER DEVICE`."""

import json
import os
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from lightning_core import LLM, Trainer, rollout
from lightning_core.runs.folder import RunFolder, runs_in
from lightning_verl.check.harness import MARK, left_of, memory

_BF16, _FP32 = 1e-2, 1e-5
"""The largest mean difference between log-probabilities of the engine that generates and of the one that trains."""
_MORE_MEMORY = 1.15
"""How much more may be in use after the last step than after the third."""
_GREEDY = 4
"""Answers to compare before and after the training."""
_KILLED_AFTER = 2


class Unexpected(Exception):
    """A stage has shown something else than it should.

    Args:
        expected: What it should have shown.
        got: What it has shown.
    """

    def __init__(self, expected: str, got: str) -> None:
        super().__init__(f"expected {expected}; got {got}")
        self.expected = expected
        self.got = got


@dataclass(slots=True)
class Seen:
    """What a training has shown."""

    steps: list[Mapping[str, float | None]] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    """Bytes, after each step."""
    greedy: list[str] = field(default_factory=list)
    """Answers to the test tasks, before and after."""
    best: str = ""
    """The folder of the model that it has saved last."""

    def column(self, name: str) -> list[float]:
        """Return what was measured at each step, where it was."""
        return [value for step in self.steps if (value := step.get(name)) is not None]


def _versions(folder: Path, device: str) -> str:
    import torch

    from lightning_verl.requirements import SUPPORTED, check_versions

    check_versions()
    found = {name: metadata.version(name) for name in (*SUPPORTED, "peft")}
    found |= {each.name: each.version for each in metadata.distributions() if each.name in ("vllm", "flash_attn")}
    where = f"{os.cpu_count()} cores"
    if device == "cuda":
        where = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    return ", ".join([where, f"Python {sys.version.split()[0]}", *(f"{name} {found[name]}" for name in found)])


def _model(folder: Path, device: str) -> str:
    from lightning_tokens.generator import Generator
    from lightning_tokens.sampling import Sampling
    from lightning_tokens.testing import make_tiny_model

    made = make_tiny_model(folder / "model", hidden_size=256)  # heads of 64, the smallest that vLLM has
    prompt = [1, 2, 3]
    [answer] = Generator.load(str(made), device=device).generate([prompt], Sampling(max_tokens=4, temperature=0.0))
    if not answer.token_ids:
        raise Unexpected("an answer of the model", "none")
    return f"{made} answers"


def _grpo(folder: Path, device: str, engine: str) -> str:
    seen = _train(folder, device, engine, steps=3)
    return f"{_difference(seen, device)}, {_changed(seen)}"


def _learn(folder: Path, device: str, engine: str) -> str:
    seen = _train(folder, device, engine, steps=20, lr=3e-3)
    rewards = seen.column("training/reward")
    first, last = statistics.mean(rewards[:5]), statistics.mean(rewards[-5:])
    if len(rewards) != 20 or last <= first + 0.05:
        raise Unexpected("a reward that rises by more than 0.05 in 20 steps", f"{rewards}")
    after_3, after_20 = seen.memory[2], seen.memory[-1]
    if after_20 > _MORE_MEMORY * after_3:
        raise Unexpected("memory after 20 steps as after 3", f"{after_20 / 2**20:.0f} MiB after {after_3 / 2**20:.0f}")
    held = f"memory {after_3 / 2**30:.2f} GiB after 3 steps, {after_20 / 2**30:.2f} after 20"
    return f"{_difference(seen, device)}, reward {first:.2f} -> {last:.2f}, {held}"


def _ppo(folder: Path, device: str, engine: str) -> str:
    seen = _train(folder, device, engine, steps=3, preset="ppo", more=["actor_rollout_ref.rollout.n=4"])
    losses = seen.column("critic/vf_loss")
    if len(losses) != 3 or losses[-1] >= losses[0]:
        raise Unexpected("three losses of the critic, of which the last is less than the first", f"{losses}")
    return f"{_difference(seen, device)}, {_changed(seen)}, critic's loss {losses[0]:.3f} -> {losses[-1]:.3f}"


def _lora(folder: Path, device: str, engine: str) -> str:
    import torch
    from peft import AutoPeftModelForCausalLM

    seen = _train(folder, device, engine, steps=3, more=["actor_rollout_ref.model.lora_rank=8"])
    adapter = AutoPeftModelForCausalLM.from_pretrained(seen.best)
    trained = max(float(weight.abs().max()) for name, weight in adapter.named_parameters() if ".lora_B." in name)
    if not trained or not torch.isfinite(torch.tensor(trained)):
        raise Unexpected("an adapter that has learned something", f"weights of at most {trained}")
    # verl rounds what it merges to bf16, on a processor, too.
    return f"{_difference(seen, 'bf16')}, {_changed(seen)}, PEFT loads {Path(seen.best).name}"


def _async(folder: Path, device: str, engine: str) -> str:
    seen = _train(folder, device, engine, steps=4, more=["trainer.v1.trainer_mode=colocate_async"])
    # Answers that were interrupted have tokens of two versions, so the difference says nothing.
    return f"{len(seen.steps)} steps, {_changed(seen)}"


def _resume(folder: Path, device: str, engine: str) -> str:
    mark = f"{os.environ[MARK]}-killed"
    before = memory(device, mark)
    command = [sys.executable, "-m", "lightning_verl.check.stages", f"{engine}-killed", str(folder), device]
    status = subprocess.run(command, env={**os.environ, MARK: mark}, check=False).returncode
    if status != -9:
        raise Unexpected("an end by SIGKILL (-9)", f"exit status {status}")
    seen = _train(folder, device, engine, steps=4, name=f"{engine}-resume", more=["trainer.save_freq=1"])
    steps = [step["step"] for step in seen.steps]
    if steps[-1:] != [4] or steps[0] not in (_KILLED_AFTER, _KILLED_AFTER + 1):
        raise Unexpected(f"steps from {_KILLED_AFTER} or {_KILLED_AFTER + 1} to 4", f"{steps}")
    if left := left_of(mark):  # the resumed training ends what the killed one has left, such as vLLM's engine
        raise Unexpected("no process left of what was killed", ", ".join(left))
    if device == "cuda" and (more := memory(device, mark) - before) > 2**28:
        raise Unexpected("the GPU's memory given back", f"{more / 2**20:.0f} MiB more in use than before")
    return f"killed after step {_KILLED_AFTER}, resumed with step {steps[0]:.0f}, nothing left"


def _killed(folder: Path, device: str, engine: str) -> str:
    more = ["trainer.save_freq=1"]
    _train(folder, device, engine, steps=4, name=f"{engine}-resume", more=more, kill_after=_KILLED_AFTER)
    return "it was not killed"


TRAININGS = {"grpo": _grpo, "learn": _learn, "ppo": _ppo, "lora": _lora, "resume": _resume, "async": _async}
"""By name, the stages for each engine that generates."""
_OTHERS = {"versions": _versions, "model": _model}


def _train(
    folder: Path,
    device: str,
    engine: str,
    *,
    steps: int,
    lr: float = 1e-2,
    preset: Literal["grpo", "ppo"] = "grpo",
    more: Sequence[str] = (),
    name: str | None = None,
    kill_after: int | None = None,
) -> Seen:
    """Train the model to say the letter a; return what that has shown."""
    from lightning_verl import VERL

    seen = Seen()

    @rollout
    def agent(task: dict[str, Any], llm: LLM, rollout: Any) -> float:
        text = _ask(llm, f"say the letter a please {task['number']}")
        if rollout.mode == "test":
            seen.greedy.append(text)
        return text.count("a") / max(len(text), 1)

    class Told:
        def lightning_step_end(self, step: int, metrics: Mapping[str, float | None]) -> None:
            seen.steps.append({"step": step, **metrics})
            seen.memory.append(memory(device, os.environ[MARK]))
            print("STEP", json.dumps(seen.steps[-1]), file=sys.stderr, flush=True)
            if step == kill_after:
                os.kill(os.getpid(), 9)

    config = [
        f"agentlightning.device={device}",
        "agentlightning.trace_aggregator.trajectory_max_prompt_length=64",
        "agentlightning.trace_aggregator.trajectory_max_response_length=32",
        f"actor_rollout_ref.model.path={folder / 'model'}",
        f"actor_rollout_ref.actor.optim.lr={lr}",
        f"actor_rollout_ref.rollout.name={engine}",
        *(["actor_rollout_ref.rollout.gpu_memory_utilization=0.3"] if engine == "vllm" else []),
        "data.train_batch_size=8",
        "data.max_prompt_length=64",
        "data.max_response_length=32",
        f"trainer.total_training_steps={steps}",
        "trainer.n_gpus_per_node=1",
        *more,
    ]
    root = folder / "runs" / (name or f"{engine}-{preset}-{steps}-{len(more)}")
    kept = runs_in(root)
    where: Path | RunFolder = kept[0] if kept else root
    trainer = Trainer(algorithm=VERL(config, preset=preset), run_dir=where, n_runners=16, hooks=[Told()])
    tasks = [{"number": number} for number in range(8 * steps)]
    result = trainer.fit(agent, tasks, test_dataset=[{"number": -1 - number} for number in range(_GREEDY)])
    if result.status != "succeeded" or result.rollouts.failed:
        raise Unexpected("a training that succeeds", f"{result.status}, {result.rollouts}, {result.failures}")
    best = (result.best_resources or {}).get("main_llm")
    seen.best = best.model if isinstance(best, LLM) else ""
    return seen


def _ask(llm: LLM, prompt: str) -> str:
    """Call the model as any program does: over HTTP, without a word about sampling."""
    body = {"model": llm.model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 12}
    headers = {"content-type": "application/json", "authorization": f"Bearer {llm.api_key}"}
    request = urllib.request.Request(f"{llm.endpoint}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


def _difference(seen: Seen, device: str) -> str:
    """Check that the two engines agree on what the sampled tokens' probabilities are."""
    bound = _FP32 if device == "cpu" else _BF16
    found = seen.column("training/rollout_logprobs_diff_mean")
    if len(found) != len(seen.steps) or not found or max(found) >= bound:
        raise Unexpected(f"a mean difference of log-probabilities below {bound:g} at each step", f"{found}")
    return f"log-prob difference {max(found):.1e}"


def _changed(seen: Seen) -> str:
    """Check that the trained weights have reached the engine that generates."""
    before, after = sorted(seen.greedy[:_GREEDY]), sorted(seen.greedy[_GREEDY:])
    if len(seen.greedy) != 2 * _GREEDY or before == after:
        raise Unexpected("other greedy answers after the training", f"{before} before, {after} after")
    return "greedy answers changed"


def main(name: str, folder: Path, device: str) -> int:
    """Run a stage; return its exit status."""
    engine, _, short = name.partition("-")
    try:
        if name in _OTHERS:
            told = {"shown": _OTHERS[name](folder, device)}
        else:
            told = {"shown": {**TRAININGS, "killed": _killed}[short](folder, device, engine)}
    except Unexpected as exc:
        told = {"expected": exc.expected, "got": exc.got}
    (folder / f"{name}.json").write_text(json.dumps(told))
    return 0 if "shown" in told else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
