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


def test_options_reach_their_component() -> None:
    trainer = Trainer(
        algorithm={"name": "baseline", "n_epochs": 2},
        store={"name": "memory", "run_id": "mine"},
        runner={"name": "agent", "heartbeat_interval": 7},
        tracer={"name": "otel", "store_timeout_seconds": 3},
        n_runners=4,
        max_rollouts=5,
    )
    assert isinstance(trainer.algorithm, Baseline)
    assert trainer.algorithm.n_epochs == 2
    assert trainer.store.run_id == "mine"
    assert isinstance(trainer.strategy, LocalStrategy)
    assert trainer.strategy.n_runners == 4
    runner = trainer.make_runner()
    assert isinstance(runner, LitAgentRunner)
    assert (runner.heartbeat_interval, runner.max_rollouts, runner.tracer) == (7, 5, trainer.tracer)
    assert trainer.make_runner() is not runner


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"algorithm": {"name": "baseline", "epochs": 2}},
            "algorithm 'baseline' has no option 'epochs'; it takes: n_epochs. Did you mean 'n_epochs'?",
        ),
        (
            {"runner": {"name": "agent", "max_rollout": 2}},
            "runner 'agent' has no option 'max_rollout'; it takes: tracer, max_rollouts, heartbeat_interval, "
            "heartbeat_launch_mode, heartbeat_include_gpu, reward. Did you mean 'max_rollouts'?",
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


def test_plugin_without_a_hook_is_refused() -> None:
    with pytest.raises(InvalidComponent, match="has no hook"):
        Trainer(algorithm="baseline", hooks=[object()])
