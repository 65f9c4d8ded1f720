"""An agent that needs no model: it is right where the answer is in capital letters."""

from lightning_core import rollout


@rollout
def agent(task: dict[str, str]) -> float:
    """Answer, and score the answer."""
    return float(task["word"].upper() == task["answer"])
