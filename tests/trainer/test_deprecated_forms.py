"""What a trainer of agentlightning 0.3 is given, and what it has."""

import pytest

import lightning_core
from lightning_core import (
    Baseline,
    InMemoryLightningStore,
    LitAgentRunner,
    OtelTracer,
    SharedMemoryExecutionStrategy,
    TracerTraceToTriplet,
    TraceToMessages,
    Trainer,
    rollout,
)
from lightning_core.errors import InvalidComponent, UnknownComponent
from lightning_core.execution import LocalStrategy
from lightning_core.registry import Registry, default_registry


@rollout
async def solve(task: float) -> float:
    return task


def test_none_is_the_default_of_each_component():
    trainer = Trainer(store=None, tracer=None, adapter=None, runner=None, strategy=None, algorithm=None, hooks=None)
    assert isinstance(trainer.store, InMemoryLightningStore)
    assert isinstance(trainer.tracer, OtelTracer)
    assert isinstance(trainer.adapter, TracerTraceToTriplet)
    assert isinstance(trainer.make_runner(), LitAgentRunner)
    assert isinstance(trainer.strategy, LocalStrategy)
    assert trainer.n_runners == 1
    assert trainer.dev(solve, [1.0]).metrics == {"train_reward": 1.0}


def test_type_names_a_path_with_dots_and_the_other_keys_are_options():
    trainer = Trainer(
        algorithm={"type": "lightning_core.algorithm.Baseline", "n_epochs": 2},
        store={"type": "lightning_core.store.InMemoryLightningStore", "run_id": "mine"},
        adapter="lightning_core.adapter.TraceToMessages",
    )
    assert isinstance(trainer.algorithm, Baseline)
    assert (trainer.algorithm.n_epochs, trainer.store.run_id) == (2, "mine")
    assert isinstance(trainer.adapter, TraceToMessages)


def test_options_alone_are_those_of_the_default_adapter():
    adapter = Trainer(adapter={"agent_match": "planner", "repair_hierarchy": False}).adapter
    assert isinstance(adapter, TracerTraceToTriplet)
    assert (adapter.agent_match, adapter.repair_hierarchy) == ("planner", False)


def test_options_alone_are_those_of_the_strategy_that_serves_the_store():
    strategy = Trainer(strategy={"n_runners": 2, "server_port": 4748}).strategy
    assert (type(strategy).__name__, strategy.n_runners, strategy.server_port) == ("ProcessesStrategy", 2, 4748)


def test_options_alone_are_an_error_for_other_components():
    with pytest.raises(InvalidComponent, match="a mapping without a string under 'name'"):
        Trainer(tracer={"instrument": []})


def test_wrong_path_with_dots_says_what_is_missing():
    with pytest.raises(UnknownComponent, match="has no 'Basline'"):
        Trainer(algorithm={"type": "lightning_core.algorithm.Basline"})


def test_registered_name_with_a_dot_is_a_name():
    registry = default_registry()
    with registry.register("algorithms", "our.baseline", Baseline):
        assert isinstance(Trainer(algorithm="our.baseline").algorithm, Baseline)
    assert isinstance(registry, Registry)


@pytest.mark.parametrize(
    ("former", "attribute", "value"),
    [
        ({"n_workers": 3}, "n_runners", 3),
        ({"max_tasks": 5}, "max_rollouts", 5),
    ],
)
def test_former_names_of_parameters_are_followed_with_a_warning(former: dict, attribute: str, value: int):
    with pytest.warns(DeprecationWarning, match=f"is deprecated; use {attribute}="):
        trainer = Trainer(**former)
    assert getattr(trainer, attribute) == value


def test_triplet_exporter_is_the_adapter():
    with pytest.warns(DeprecationWarning, match=r"Trainer\(triplet_exporter=\) is deprecated; use adapter="):
        assert Trainer(triplet_exporter={"agent_match": "a"}).adapter.agent_match == "a"


@pytest.mark.parametrize(("former", "advice"), [({"dev": True}, "call trainer.dev"), ({"daemon": False}, "outlives")])
def test_parameters_without_effect_say_what_to_do(former: dict, advice: str):
    with pytest.warns(DeprecationWarning, match=advice):
        Trainer(**former)


def test_port_that_nobody_listens_at_is_warned_of():
    with pytest.warns(UserWarning, match="port=4747 has no effect: LocalStrategy serves no store there") as caught:
        Trainer(port=4747, strategy="local")
    assert caught[0].filename == __file__


def test_port_alone_asks_for_the_strategy_that_serves_the_store():
    strategy = Trainer(port=4747, n_runners=4).strategy
    assert (type(strategy).__name__, strategy.server_port, strategy.n_runners) == ("ProcessesStrategy", 4747, 4)


def test_port_counts_for_a_strategy_that_was_made_before():
    strategy = lightning_core.ClientServerExecutionStrategy(server_port=9000)
    assert Trainer(strategy=strategy, port=9100).strategy.server_port == 9100


@pytest.mark.parametrize(
    "strategy", [SharedMemoryExecutionStrategy(n_runners=4), {"name": "local", "n_runners": 4}], ids=["made", "named"]
)
def test_number_of_runners_of_a_strategy_that_was_given_one_counts(strategy: object):
    with pytest.warns(
        UserWarning, match="n_runners=8 has no effect: the strategy was given with n_runners=4"
    ) as caught:
        trainer = Trainer(strategy=strategy, n_runners=8)
    assert (trainer.n_runners, caught[0].filename) == (4, __file__)


def test_options_without_effect_can_be_read_again():
    options = {"type": "shm", "main_thread": "algorithm", "managed_store": False}
    with pytest.warns(DeprecationWarning, match="has no effect"):
        strategy = Trainer(n_runners=8, strategy=options).strategy
    assert isinstance(strategy, SharedMemoryExecutionStrategy)
    assert (strategy.main_thread, strategy.managed_store, strategy.n_runners) == ("algorithm", False, 8)


def test_trainer_shows_a_runner():
    trainer = Trainer(n_runners=8, tracer=OtelTracer(), max_rollouts=3)
    assert isinstance(trainer.runner, LitAgentRunner)
    assert (trainer.runner.tracer, trainer.runner.max_rollouts) == (trainer.tracer, 3)


def test_a_former_name_is_an_alias():
    assert isinstance(Trainer(algorithm="fast").algorithm, Baseline)


def test_paths_of_agentlightning_are_paths_of_this_package():
    trainer = Trainer(adapter="agentlightning.adapter.TraceToMessages", tracer={"type": "agentlightning.OtelTracer"})
    assert isinstance(trainer.adapter, TraceToMessages)
    assert isinstance(trainer.tracer, OtelTracer)


def test_resources_that_an_algorithm_was_given_before_stay_where_the_trainer_has_none():
    algorithm = Baseline()
    algorithm.set_initial_resources({})
    Trainer(algorithm=algorithm).fit(solve, [1.0])
    assert algorithm.get_initial_resources() == {}
