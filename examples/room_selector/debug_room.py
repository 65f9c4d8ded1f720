"""Three ways to look at an agent before anything is optimised: python debug_room.py runner | hook | trainer."""

import asyncio
import sys
from typing import Any

import rooms
from room_agent import select_room
from room_model import played_model

from lightning_core import (
    InMemoryLightningStore,
    LitAgentRunner,
    OtelTracer,
    PromptTemplate,
    Trainer,
    find_final_reward,
    hookimpl,
)

PROMPT = PromptTemplate(template="Find a meeting room with the tool. Reply with its name.\n\n{request}")


class ShowSpans:
    """Prints what an attempt recorded as soon as it has ended."""

    @hookimpl
    async def lightning_rollout_end(self, rollout: Any, spans: Any) -> None:
        print(f"{rollout.rollout_id}: {rooms.describe(rollout.input)}")
        for span in spans:
            print(f"  {span.sequence_id:2} {span.name}")


async def with_runner(*hooks: object) -> None:
    """Run one task past the queue, in this event loop: breakpoints in the agent work."""
    store = InMemoryLightningStore()
    await played_model.lightning_run_start("debug")
    try:
        runner = LitAgentRunner[Any](OtelTracer())
        with runner.run_context(agent=select_room, store=store, hooks=hooks):
            rollout = await runner.step(rooms.train()[0], resources={"prompt_template": PROMPT})
    finally:
        await played_model.lightning_run_end("debug", "succeeded")
    reward = find_final_reward(await store.query_spans(rollout.rollout_id))
    print(f"{rollout.status}; reward {reward}")


def with_trainer() -> None:
    """Run a few tasks as `fit` would, with an algorithm that only measures."""
    trainer = Trainer(n_runners=2, initial_resources={"prompt_template": PROMPT}, hooks=[played_model])
    print(f"mean reward {trainer.dev(select_room, rooms.train()[:4]).metrics['train_reward']:.2f}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case [] | ["runner"]:
            asyncio.run(with_runner())
        case ["hook"]:
            asyncio.run(with_runner(ShowSpans()))
        case ["trainer"]:
            with_trainer()
        case other:
            sys.exit(f"there is no mode {' '.join(other)!r}; it is runner, hook or trainer")
