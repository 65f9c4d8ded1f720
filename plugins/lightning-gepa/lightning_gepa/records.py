"""What the model that rewrites a prompt reads of one run."""

from collections.abc import Sequence
from typing import Any

from lightning_apo.experiment import Experiment


def record_of(run: Experiment) -> dict[str, Any]:
    """Return a run as gepa renders it: a heading for each name, the parts that there are."""
    record: dict[str, Any] = {"Task": run.task}
    parts: dict[str, Sequence[str]] = {
        "Conversation, with calls of tools and their results": run.turns,
        "Operations": run.operations,
        "Messages of the agent": run.messages,
    }
    record |= {name: list(texts) for name, texts in parts.items() if texts}
    if run.reward is None:
        return {**record, "Failure": run.failure}
    return {
        **record,
        "Reward": ", ".join(f"{name} {value:g}" for name, value in run.rewards.items()) or f"{run.reward:g}",
    }
