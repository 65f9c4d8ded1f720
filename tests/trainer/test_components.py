"""What may be given for each component of a trainer, and what is said of anything else."""

from collections.abc import Callable
from typing import Any

import pytest

from lightning_core import Trainer, rollout
from lightning_core.algorithm import Baseline
from lightning_core.errors import InvalidComponent
from lightning_core.execution import LocalStrategy
from lightning_core.runner import LitAgentRunner, Runner
from lightning_core.store.memory import InMemoryLightningStore
from lightning_core.tracer import OtelTracer


@rollout
async def solve(task: float) -> float:
    return task


READY_RUNNER = LitAgentRunner(OtelTracer())


def make_runner(tracer: OtelTracer, heartbeat_interval: float = 5.0) -> Runner:
    return LitAgentRunner(tracer, heartbeat_interval=heartbeat_interval)


FORMS: list[tuple[str, Callable[[], object]]] = [
    ("algorithm", Baseline),
    ("algorithm", lambda: Baseline),
    ("algorithm", lambda: {"name": "lightning_core.algorithm:Baseline", "n_epochs": 1}),
    ("store", InMemoryLightningStore),
    ("store", lambda: {"name": "memory", "run_id": "mine"}),
    ("tracer", OtelTracer),
    ("tracer", lambda: "lightning_core.tracer:OtelTracer"),
    ("runner", lambda: make_runner),
    ("runner", lambda: "agent"),
    ("runner", lambda: f"{__name__}:READY_RUNNER"),
    ("strategy", lambda: LocalStrategy),
    ("strategy", lambda: "shm"),
]


@pytest.mark.parametrize(("component", "given"), FORMS)
def test_every_component_is_taken_in_every_form(component: str, given: Callable[[], object]) -> None:
    result = Trainer(**{"algorithm": "baseline", component: given()}).fit(solve, [1.0, 0.0])
    assert result.metrics == {"train_reward": 0.5}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"runner": {"name": "agent", "max_rollout": 2}},
            "runner 'agent' has no option 'max_rollout'; it takes: tracer, max_rollouts, heartbeat_interval, "
            "reward. Did you mean 'max_rollouts'?",
        ),
        (
            {"max_rollouts": 8, "runner": LitAgentRunner(OtelTracer())},
            "max_rollouts is 8, but the runner was given with max_rollouts=None; say it in one place",
        ),
        (
            {"n_runners": 2, "runner": LitAgentRunner(OtelTracer())},
            "runner is one instance of LitAgentRunner, but there are 2 runners; "
            "give its class, its name or a dict with its options",
        ),
    ],
)
def test_options_that_cannot_be_followed_are_refused_before_a_run(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidComponent) as raised:
        Trainer(**{"algorithm": "baseline", **given})
    assert str(raised.value) == message
