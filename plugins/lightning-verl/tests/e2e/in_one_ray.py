"""Trains many times in a Ray that runs already, and prints what each training leaves of it. Run by the tests:

python in_one_ray.py '[["the options of letters.py"], ["those of the next training"]]'
"""

import json
import sys
import time

import letters
import ray

from lightning_core.errors import LightningError

GPUS, CPUS = 2, 16


@ray.remote(num_cpus=0)
class Kept:
    """Somebody else's."""

    def number(self) -> int:
        return 7


def actors() -> list[str]:
    """Return the actors that live, once that has not changed any more: the end of one is told a moment later."""
    deadline = time.monotonic() + 15
    while True:
        alive = [each for each in ray._private.state.actors().values() if each["State"] == "ALIVE"]
        found = sorted({each["ActorClassName"] for each in alive})
        if found == ["Kept"] or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def left() -> dict[str, object]:
    """Return what the cluster has: the states of its placement groups, what is free, and who lives."""
    groups = {group["state"] for group in ray.util.placement_group_table().values()}
    free = ray.available_resources()
    return {"groups": sorted(groups), "free": [free.get("GPU"), free.get("CPU")], "actors": actors()}


def fit(options: list[str]) -> None:
    try:
        letters.main(options)
    except (LightningError, OSError) as exc:
        print("FAILED", json.dumps(f"{type(exc).__name__}: {exc}"), flush=True)


def main() -> None:
    ray.init(
        num_cpus=CPUS,
        num_gpus=GPUS,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"env_vars": {"VERL_PLATFORM": "cpu", "TRANSFER_QUEUE_ENABLE": "1"}},
    )
    kept = Kept.remote()
    ray.get(kept.number.remote())
    trainings = json.loads(sys.argv[1])
    for options in trainings:
        fit(options)
        print("LEFT", json.dumps({**left(), "kept": ray.get(kept.number.remote())}), flush=True)
    model = trainings[0][0]
    fit([model, "trainer.n_gpus_per_node=4"])
    held = ray.util.placement_group([{"CPU": CPUS - 4.0}])
    ray.get(held.ready())
    fit([model])


if __name__ == "__main__":
    main()
