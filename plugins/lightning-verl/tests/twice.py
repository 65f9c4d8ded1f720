"""Trains in a Ray that runs already, and prints how each training has ended and what is left of it.

Run by the tests.
"""

import json
import sys
import time
import urllib.request

import ray
from lightning_verl import GRPO

from lightning_core import LLM, LitAgent, Trainer, rollout
from lightning_core.errors import LightningError

WHAT = ("GPU", "CPU")


def ask(task: str, llm: LLM) -> str:
    body = json.dumps({"model": llm.model, "messages": [{"role": "user", "content": task}]}).encode()
    headers = {"content-type": "application/json"}
    if llm.api_key is not None:
        headers["authorization"] = f"Bearer {llm.api_key}"
    with urllib.request.urlopen(urllib.request.Request(f"{llm.endpoint}/chat/completions", body, headers)) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


@rollout
def agent(task: str, llm: LLM) -> float:
    return float(len(ask(task, llm)) % 2)


@rollout
def broken(task: str, llm: LLM) -> float:
    ask(task, llm)
    raise RuntimeError("the agent broke")


@ray.remote(num_cpus=0)
class Kept:
    """Somebody else's."""

    def number(self) -> int:
        return 7


def actors() -> list[str]:
    """Return the actors that live, once that has not changed any more: the end of one is told a moment later."""
    deadline = time.monotonic() + 10
    while True:
        alive = [each for each in ray._private.state.actors().values() if each["State"] == "ALIVE"]
        found = sorted({each["ActorClassName"] for each in alive})
        if found == ["Kept"] or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def fit(*overrides: str, agent: LitAgent[str] = agent) -> str:
    """Return how a training has ended."""
    algorithm = GRPO(
        [
            "agentlightning.device=cpu",
            "agentlightning.on_failure=0",  # which could be learned from for ever
            "agentlightning.trace_aggregator.trajectory_max_prompt_length=64",
            "agentlightning.trace_aggregator.trajectory_max_response_length=64",
            f"actor_rollout_ref.model.path={sys.argv[1]}",
            "actor_rollout_ref.rollout.n=2",
            "actor_rollout_ref.actor.use_kl_loss=False",
            "data.train_batch_size=2",
            "data.max_prompt_length=64",
            "data.max_response_length=8",
            "trainer.val_before_train=False",
            "trainer.default_local_dir=checkpoints",
            "trainer.save_freq=-1",
            "trainer.total_training_steps=1",
            "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
            *overrides,
        ]
    )
    try:
        return str(Trainer(algorithm=algorithm, n_runners=4).fit(agent, ["hello", "world"]).status)
    except LightningError as exc:
        return f"{type(exc).__name__}: {exc}"


def main() -> None:
    ray.init(
        num_cpus=6,
        num_gpus=1,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"env_vars": {"VERL_PLATFORM": "cpu", "TRANSFER_QUEUE_ENABLE": "1"}},
    )
    kept = Kept.remote()
    ray.get(kept.number.remote())
    for each in (broken, agent):
        print("ENDED", fit(agent=each))
        groups = [group["state"] for group in ray.util.placement_group_table().values()]
        free = {name: ray.available_resources().get(name, 0.0) for name in WHAT}
        print("LEFT", json.dumps([sorted(set(groups)), free, actors(), ray.get(kept.number.remote())]))
    print("REFUSED", fit("trainer.n_gpus_per_node=2"))
    held = ray.util.placement_group([{"CPU": 2.0}])
    ray.get(held.ready())
    print("REFUSED", fit())


if __name__ == "__main__":
    main()
