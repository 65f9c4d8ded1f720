import functools
import re
import threading
from typing import Any

import pytest

from lightning_core.agent import rollout
from lightning_core.algorithm import Algorithm, algo
from lightning_core.errors import AlgorithmError, InvalidComponent
from lightning_core.store import InMemoryLightningStore
from lightning_core.trainer import Trainer
from lightning_core.types import NamedResources, PromptTemplate

pytestmark = pytest.mark.usefixtures("nothing_left_running")

RESOURCES: NamedResources = {"prompt": PromptTemplate(template="Answer {question}")}


@rollout
async def echo(task: float) -> float:
    return task


async def test_sync_function_runs_in_a_thread_of_its_own() -> None:
    threads = []

    @algo
    def measure(report: Any) -> None:
        threads.append(threading.current_thread())
        report({"answer": 42})

    result = await Trainer(algorithm=measure).fit_async(echo)

    assert not measure.is_async()
    assert result.metrics == {"answer": 42}
    assert threads[0] is not threading.main_thread()
    assert threads[0].daemon


async def test_function_is_given_exactly_what_it_has_parameters_for() -> None:
    given: dict[str, Any] = {}

    @algo
    async def everything(
        store: Any, train_dataset: Any, val_dataset: Any, initial_resources: Any, report: Any, beam_width: int = 4
    ) -> None:
        given.update(locals())

    @algo
    async def nothing() -> None:
        given["nothing"] = True

    store = InMemoryLightningStore()
    trainer = Trainer(algorithm=everything, store=store, initial_resources=RESOURCES)
    await trainer.fit_async(echo, [1], val_dataset=[2])
    await Trainer(algorithm=nothing).fit_async(echo)

    assert given.pop("report") == everything.report
    assert given.pop("given", given) is given
    assert given == {
        "store": store,
        "train_dataset": [1],
        "val_dataset": [2],
        "initial_resources": RESOURCES,
        "beam_width": 4,
        "nothing": True,
    }


async def test_dataset_that_the_function_does_not_take_is_an_error() -> None:
    @algo
    async def measure(store: Any, train_dataset: Any) -> None: ...

    with pytest.raises(AlgorithmError, match=r"measure takes no val_dataset, but there is one"):
        await Trainer(algorithm=measure).fit_async(echo, [1], val_dataset=[2])


def test_unknown_parameter_is_named_with_what_is_possible() -> None:
    def measure(store: Any, dataset: Any) -> None: ...

    expected = (
        "measure has a parameter 'dataset' that nothing can be given for; by name it may have: store, train_dataset, "
        "val_dataset, adapter, llm_proxy, initial_resources, rollout_config, report. Did you mean "
    )
    with pytest.raises(InvalidComponent, match=re.escape(expected)):
        algo(measure)


async def test_partial_and_callable_object_are_algorithms_whatever_their_attributes_are_called() -> None:
    class Search:
        def __init__(self) -> None:
            self.run = self._function = self._wanted = "its own"

        async def __call__(self, report: Any, *, width: int = 1) -> None:
            report({"width": width})

    algorithms = [algo(Search()), algo(functools.partial(Search(), width=3))]
    results = [await Trainer(algorithm=each).fit_async(echo) for each in algorithms]

    assert [each.is_async() for each in algorithms] == [True, True]
    assert [result.metrics for result in results] == [{"width": 1}, {"width": 3}]
    with pytest.raises(AlgorithmError, match="Search takes no train_dataset"):
        algorithms[1].run([1])


async def test_algorithm_is_still_the_function_to_whoever_calls_it() -> None:
    @algo
    def double(store: int) -> int:
        return store * 2

    assert double(21) == 42
    with pytest.raises(AlgorithmError, match="has no store"):
        double.run()


def test_algorithm_class_can_be_called_and_says_what_it_is_not_attached_to() -> None:
    class Measure(Algorithm):
        def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            seen.append((train_dataset, val_dataset))

    seen: list[Any] = []
    measure = Measure()
    measure([1], val_dataset=[2])
    assert seen == [([1], [2])]
    for ask in (measure.get_store, measure.get_adapter, measure.get_trainer):
        with pytest.raises(ValueError, match="Measure has no"):
            ask()
