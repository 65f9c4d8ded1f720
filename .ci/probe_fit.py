"""Run by wheels.py in each clean environment: what a distribution registers runs a fit of two rollouts.

Usage: python -I probe_fit.py DISTRIBUTION

Each of its stores, tracers, runners and strategies is tried, with the core's for the rest; of lightning-legacy, that it
adds the module paths of agentlightning 0.3.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lightning_core import PromptTemplate, Trainer, rollout

KINDS = {"stores": "store", "tracers": "tracer", "runners": "runner", "strategies": "strategy"}


@rollout
def agent(task: dict[str, float], prompt_template: PromptTemplate) -> float:
    return task["x"]


def look_up(query: str) -> str:
    return query


@contextmanager
def options(kind: str, name: str) -> Iterator[dict[str, Any]]:
    """Yield what a component cannot do without, such as the address of a server that is started for it."""
    if (kind, name) == ("stores", "http"):
        from lightning_http import LightningStoreServer

        from lightning_core import InMemoryLightningStore

        with LightningStoreServer(InMemoryLightningStore(), launch_mode="thread", key="") as server:
            yield {"url": server.url}
    elif (kind, name) == ("stores", "mongo"):
        from lightning_mongo.testing import Mongod

        with Mongod() as mongod:
            yield {"uri": mongod.uri}
    elif (kind, name) == ("stores", "sqlite"):
        with TemporaryDirectory() as folder:
            yield {"path": f"{folder}/store.db"}
    elif (kind, name) == ("runners", "agentos"):
        from lightning_agentos import governed

        governed(look_up)  # it refuses agents without a tool that it sees
        with TemporaryDirectory() as folder:
            policy = Path(folder, "policy.yaml")
            policy.write_text("name: all\nrules: []\n", encoding="utf-8")
            yield {"kernel": str(policy)}
    else:
        yield {}


def main() -> None:
    """Fit each component of the distribution, and end with an error at the first that cannot."""
    for entry in distribution(sys.argv[1]).entry_points:
        if entry.group == "lightning_core.former":  # a path that the core does not have
            importlib.import_module("lightning_core.types.core")
        kind = entry.group.removeprefix("lightning_core.")
        if kind not in KINDS:
            continue
        with options(kind, entry.name) as needed:
            trainer = Trainer(
                algorithm="baseline",
                initial_resources={"main_prompt": PromptTemplate(template="Hello {x}")},
                **{KINDS[kind]: {"name": entry.name, **needed}},
            )
            result = trainer.fit(agent, train_dataset=[{"x": 1.0}, {"x": 0.0}])
        if result.status != "succeeded" or result.metrics != {"train_reward": 0.5}:
            sys.exit(f"a fit with {KINDS[kind]} {entry.name!r} gave {result}")
        print(f"{KINDS[kind]} {entry.name}: fitted")


if __name__ == "__main__":
    main()
