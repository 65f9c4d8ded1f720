import asyncio
import gc
from typing import Any

import pytest

from lightning_core.agent import LitAgent
from lightning_core.errors import AgentError, InvalidAgent
from lightning_core.runner import LitAgentRunner
from lightning_core.store import InMemoryLightningStore
from lightning_core.tracer import OtelTracer
from lightning_core.trainer import Trainer
from lightning_core.types import NamedResources, Rollout, RolloutMode

MODES: list[RolloutMode | None] = ["train", "val", "test", None]


async def results(agent: LitAgent[Any]) -> list[Any]:
    """What the agent's method of each mode returns: train, val, test, none."""
    rollout = Rollout(rollout_id="ro-1", input="task", start_time=0)
    returned = []
    for mode in MODES:
        result = agent.method_for(mode)("task", {}, rollout)
        returned.append(await result if agent.is_async() else result)
    return returned


async def test_variant_that_is_missing_falls_back_to_rollout() -> None:
    class Solver(LitAgent[str]):
        def rollout(self, task: str, resources: NamedResources, rollout: Rollout) -> str:
            return "any"

        def validation_rollout(self, task: str, resources: NamedResources, rollout: Rollout) -> str:
            return "validation"

    assert await results(Solver()) == ["any", "validation", "validation", "validation"]


async def test_async_variants_do_the_same() -> None:
    class Solver(LitAgent[str]):
        async def rollout_async(self, task: str, resources: NamedResources, rollout: Rollout) -> str:
            return "any"

        async def training_rollout_async(self, task: str, resources: NamedResources, rollout: Rollout) -> str:
            return "training"

    assert await results(Solver()) == ["training", "any", "any", "any"]
    assert Solver().is_async()


async def test_agent_that_lacks_a_method_or_a_mode_says_what_to_implement() -> None:
    class Empty(LitAgent[str]): ...

    with pytest.raises(InvalidAgent, match="Empty has to implement rollout or rollout_async"):
        Empty().method_for("train")("task", {}, Rollout(rollout_id="ro-1", input="task", start_time=0))

    class Halved(LitAgent[str]):
        async def training_rollout_async(self, task: str, resources: NamedResources, rollout: Rollout) -> str:
            return "training"

    with pytest.raises(InvalidAgent, match="Halved has to implement rollout_async"):
        await Halved().method_for("val")("task", {}, Rollout(rollout_id="ro-1", input="task", start_time=0))


def test_agent_knows_its_trainer_but_does_not_keep_it() -> None:
    agent: LitAgent[Any] = LitAgent()
    trainer = Trainer()
    agent.set_trainer(trainer)
    assert agent.trainer is agent.get_trainer() is trainer

    del trainer
    gc.collect()

    with pytest.raises(AgentError, match=r"LitAgent has no trainer; run it through Trainer\.fit"):
        agent.get_trainer()


async def test_agent_sees_the_runner_and_the_tracer_of_each_of_its_rollouts() -> None:
    """Two runners with tracers of their own run one agent at the same time, in the loop and in threads."""
    meeting, seen = asyncio.Barrier(2), []

    class Solver(LitAgent[int]):
        async def rollout_async(self, task: int, resources: NamedResources, rollout: Rollout) -> None:
            await meeting.wait()
            here = (self.runner, self.tracer)
            assert here == await asyncio.to_thread(lambda: (self.get_runner(), self.get_tracer()))
            seen.append(here)

    solver, store = Solver(), InMemoryLightningStore()
    runners = [LitAgentRunner(OtelTracer()) for _ in range(2)]

    async def step(number: int) -> None:
        with runners[number].run_context(agent=solver, store=store, worker_id=number):
            assert (await runners[number].step(number)).status == "succeeded"

    await asyncio.gather(step(0), step(1))

    assert sorted(seen, key=lambda here: runners.index(here[0])) == [(each, each.tracer) for each in runners]
    with pytest.raises(AgentError, match="Solver has no runner here; only a rollout that is being run has one"):
        solver.get_runner()


def test_tracer_outside_of_a_rollout_is_that_of_the_trainer() -> None:
    agent: LitAgent[Any] = LitAgent()
    with pytest.raises(AgentError, match="has no trainer"):
        agent.get_tracer()
    trainer = Trainer()
    agent.set_trainer(trainer)

    assert agent.tracer is trainer.tracer


async def test_attached_runner_is_that_of_whoever_asks_outside_of_rollouts() -> None:
    class Solver(LitAgent[str]):
        async def rollout_async(self, task: str, resources: NamedResources, rollout: Rollout) -> float:
            assert self.get_runner() is running
            return 1.0

    agent, attached, running = Solver(), LitAgentRunner[str](OtelTracer()), LitAgentRunner[str](OtelTracer())
    agent.set_runner(attached)
    assert agent.get_runner() is attached
    with running.run_context(agent=agent, store=InMemoryLightningStore()):
        assert (await running.step("task")).status == "succeeded"


@pytest.mark.parametrize("name", ["rollout", "training_rollout", "validation_rollout_async"])
def test_a_method_that_yields_is_refused_where_the_class_is_made(name: str) -> None:
    def plain(self: Any, task: str, resources: NamedResources, rollout: Rollout) -> Any:
        yield 1.0

    async def asynchronous(self: Any, task: str, resources: NamedResources, rollout: Rollout) -> Any:
        yield 1.0

    method = asynchronous if name.endswith("async") else plain
    with pytest.raises(InvalidAgent, match=rf"agent Solver\.{name} has a yield, so .*; return the reward instead"):
        type("Solver", (LitAgent,), {name: method})
