"""How a training ends that is cancelled: at once, or when it has kept what it learned."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from lightning_verl.bridge import Bridge, Stopped
from lightning_verl.ending import Ending, Enough
from lightning_verl.training import Training


class Trainer:
    """verl's, after a step."""

    def __init__(self, *, has_more_to_keep: bool) -> None:
        self.has_more_to_keep = has_more_to_keep

    def workers(self) -> list[Any]:
        return []


class Waiting(Training):
    """Waits for rollouts in its thread until it is to end, and then keeps what it has learned, which may fail."""

    def __init__(
        self,
        *,
        is_spent: bool,
        has_more_to_keep: bool = True,
        goes_wrong: Exception | None = None,
        end_seconds: float = 30,
    ) -> None:
        self.ending = Ending()
        parts = SimpleNamespace(bridge=Bridge(asyncio.get_running_loop()), manager=SimpleNamespace(ending=self.ending))
        super().__init__(cast(Any, parts), is_spent=lambda: is_spent, end_seconds=end_seconds)
        self._trainer = Trainer(has_more_to_keep=has_more_to_keep)
        self._goes_wrong = goes_wrong
        self.waits, self.keeps = asyncio.Event(), asyncio.Event()
        self.may_save = threading.Event()
        self.did: list[str] = []

    def _work(self) -> None:
        try:
            self._parts.bridge.call(self._say(self.waits))
            while not self.ending.is_asked:
                self._parts.bridge.wait(60)
            raise Enough("the budget")
        except Enough:
            self.did.append("keeps")
            self._parts.bridge.call(self._say(self.keeps))
            self.may_save.wait(60)
            if self._goes_wrong is not None:
                raise self._goes_wrong from None
            self.did.append("kept")
        except Stopped:
            self.did.append("stopped")

    async def _say(self, event: asyncio.Event) -> None:
        event.set()


async def cancelled(training: Waiting) -> "asyncio.Task[None]":
    task = asyncio.create_task(training.run())
    await training.waits.wait()
    task.cancel()
    return task


async def test_where_the_budget_is_used_up_what_was_learned_is_kept_first() -> None:
    training = Waiting(is_spent=True)
    training.may_save.set()
    with pytest.raises(asyncio.CancelledError):
        await (await cancelled(training))
    assert training.did == ["keeps", "kept"]


@pytest.mark.parametrize(("is_spent", "has_more_to_keep"), [(False, True), (True, False)])
async def test_an_interruption_keeps_nothing_nor_does_a_run_that_has_kept_all(
    is_spent: bool, has_more_to_keep: bool
) -> None:
    training = Waiting(is_spent=is_spent, has_more_to_keep=has_more_to_keep)
    with pytest.raises(asyncio.CancelledError):
        await (await cancelled(training))
    assert training.did == ["stopped"]


async def test_an_interruption_does_not_wait_for_what_is_being_kept() -> None:
    training = Waiting(is_spent=True, end_seconds=0.1)
    task = await cancelled(training)
    await training.keeps.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(30):  # what is kept takes 60
            await task
    assert training.did == ["keeps"]
    training.may_save.set()


async def test_what_goes_wrong_while_it_is_kept_is_raised() -> None:
    training = Waiting(is_spent=True, goes_wrong=OSError("the disk is full"))
    training.may_save.set()
    with pytest.raises(OSError, match="the disk is full"):
        await (await cancelled(training))
