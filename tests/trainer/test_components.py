"""What may be given for each component of a trainer, and what is said of anything else."""

import importlib.metadata
from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from lightning_core import Trainer, rollout
from lightning_core.algorithm import Algorithm, Baseline
from lightning_core.errors import InvalidComponent, RegistryError, UnknownComponent
from lightning_core.execution import LocalStrategy
from lightning_core.registry import Registry
from lightning_core.runner import LitAgentRunner, Runner
from lightning_core.store.memory import InMemoryLightningStore
from lightning_core.tracer import OtelTracer
from lightning_core.types import Dataset


@rollout
async def solve(task: float) -> float:
    return task


READY_RUNNER = LitAgentRunner(OtelTracer())


def make_runner(tracer: OtelTracer, heartbeat_interval: float = 5.0) -> Runner:
    return LitAgentRunner(tracer, heartbeat_interval=heartbeat_interval)


@pytest.fixture
def registry() -> Registry:
    """The core's own components and one of a plugin, whatever else is installed."""
    own = importlib.metadata.distribution("lightning-core").entry_points
    return Registry([*own, EntryPoint("apo", "lightning_apo:APO", "lightning_core.algorithms")])


FORMS: dict[str, dict[str, Callable[[], object]]] = {
    "algorithm": {
        "instance": Baseline,
        "class": lambda: Baseline,
        "name": lambda: "baseline",
        "name with options": lambda: {"name": "baseline", "n_epochs": 1},
        "path": lambda: "lightning_core.algorithm:Baseline",
        "path with options": lambda: {"name": "lightning_core.algorithm:Baseline", "n_epochs": 1},
    },
    "store": {
        "instance": InMemoryLightningStore,
        "class": lambda: InMemoryLightningStore,
        "name": lambda: "memory",
        "name with options": lambda: {"name": "memory", "run_id": "mine"},
        "path": lambda: "lightning_core.store.memory:InMemoryLightningStore",
    },
    "tracer": {
        "instance": OtelTracer,
        "class": lambda: OtelTracer,
        "name": lambda: "otel",
        "name with options": lambda: {"name": "otel", "store_timeout_seconds": 3},
        "path": lambda: "lightning_core.tracer:OtelTracer",
    },
    "runner": {
        "instance": lambda: LitAgentRunner(OtelTracer()),
        "class": lambda: LitAgentRunner,
        "function": lambda: make_runner,
        "name": lambda: "agent",
        "name with options": lambda: {"name": "agent", "heartbeat_interval": 3},
        "path": lambda: "lightning_core.runner:LitAgentRunner",
        "path of an instance": lambda: f"{__name__}:READY_RUNNER",
    },
    "strategy": {
        "instance": LocalStrategy,
        "class": lambda: LocalStrategy,
        "name": lambda: "local",
        "other name": lambda: "shm",
        "name with options": lambda: {"name": "local", "n_runners": 3},
        "path": lambda: "lightning_core.execution:LocalStrategy",
    },
}


@pytest.mark.parametrize(("component", "form"), [(component, form) for component in FORMS for form in FORMS[component]])
def test_every_form_of_every_component_makes_a_trainer_that_runs(component: str, form: str) -> None:
    given: dict[str, Any] = {"algorithm": "baseline", component: FORMS[component][form]()}
    result = Trainer(**given).fit(solve, [1.0, 0.0])
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
    ("component", "name", "message"),
    [
        ("algorithm", "apoo", "no algorithm named 'apoo'; installed: apo, baseline. Did you mean 'apo'?"),
        ("store", "memroy", "no store named 'memroy'; installed: memory. Did you mean 'memory'?"),
        ("tracer", "otl", "no tracer named 'otl'; installed: dummy, otel. Did you mean 'otel'?"),
        ("runner", "agents", "no runner named 'agents'; installed: agent. Did you mean 'agent'?"),
        ("strategy", "locl", "no strategy named 'locl'; installed: local. Did you mean 'local'?"),
    ],
)
def test_unknown_name_says_what_is_installed_and_what_it_probably_meant(
    registry: Registry, component: str, name: str, message: str
) -> None:
    given: dict[str, Any] = {component: name}
    with pytest.raises(UnknownComponent) as raised:
        Trainer(registry=registry, **given)
    assert str(raised.value) == message


def test_name_that_another_distribution_has_says_which(registry: Registry) -> None:
    with pytest.raises(UnknownComponent, match=r"^'verl' is not installed; it ships in lightning-verl\. Install it "):
        Trainer(algorithm="verl", registry=registry)


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
        (
            {"n_runners": 2, "runner": f"{__name__}:READY_RUNNER"},
            "runner is one instance of LitAgentRunner, but there are 2 runners; "
            "give its class, its name or a dict with its options",
        ),
    ],
)
def test_options_that_cannot_be_followed_are_refused_before_a_run(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidComponent) as raised:
        Trainer(**{"algorithm": "baseline", **given})
    assert str(raised.value) == message


def test_same_number_in_two_places_is_no_contradiction() -> None:
    trainer = Trainer(algorithm="baseline", n_runners=2, strategy=LocalStrategy(2))
    assert trainer.fit(solve, [1.0]).status == "succeeded"


def test_value_that_a_component_refuses_is_its_own_error() -> None:
    with pytest.raises(ValueError, match="n_runners is 0; it is a whole number from 1 on"):
        Trainer(algorithm="baseline", n_runners=0)


def test_component_of_the_wrong_kind_is_refused() -> None:
    with pytest.raises(RegistryError, match="it has to be an instance or a subclass of Algorithm"):
        Trainer(algorithm="lightning_core.execution:LocalStrategy")


def test_plugin_without_a_hook_is_refused() -> None:
    with pytest.raises(InvalidComponent, match="has no hook"):
        Trainer(algorithm="baseline", hooks=[object()])


def test_algorithm_and_agent_are_given_the_trainer_and_the_initial_resources() -> None:
    seen: list[object] = []

    class Look(Algorithm):
        async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
            seen.extend([self.get_trainer(), self.get_store(), self.get_initial_resources()])

    trainer = Trainer(algorithm=Look)
    trainer.fit(solve)
    assert seen == [trainer, trainer.store, None]
    assert solve.trainer is trainer
