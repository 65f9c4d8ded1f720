import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lightning_core.agent import rollout
from lightning_core.emitter import emit_message, find_final_reward, get_message_value
from lightning_core.trainer import Trainer

pytestmark = pytest.mark.usefixtures("nothing_left_running")

ROLLOUTS = 512
RUNNERS = 256
MESSAGES = 10


def say(task: int, *numbers: int) -> None:
    for number in numbers:
        emit_message(f"{task}: {number}")


def alone(task: int) -> None:
    say(task, *range(MESSAGES))


def in_own_threads(task: int) -> None:
    half = MESSAGES // 2
    threads = [threading.Thread(target=say, args=(task, *range(first, first + half))) for first in (0, half)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_own_pool(task: int) -> None:
    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(say, [task] * MESSAGES, range(MESSAGES)))


async def between_awaits(task: int) -> None:
    for number in range(MESSAGES):
        say(task, number)
        await asyncio.sleep(0)


async def in_own_tasks(task: int) -> None:
    async def tool(number: int) -> None:
        await asyncio.sleep(0)
        say(task, number)

    async with asyncio.TaskGroup() as group:
        for number in range(1, MESSAGES):
            group.create_task(tool(number))
    await asyncio.to_thread(say, task, 0)


SYNC = (alone, in_own_threads, in_own_pool)
ASYNC = (between_awaits, in_own_tasks)


@rollout
def mixed(task: int) -> Any:
    """Does half of the tasks in its thread, and the other half in the event loop; each in one of the ways above."""

    def in_thread() -> float:
        SYNC[task % len(SYNC)](task)
        return task / ROLLOUTS

    async def in_loop() -> float:
        await ASYNC[task // 2 % len(ASYNC)](task)
        return task / ROLLOUTS

    return in_thread() if task % 2 else in_loop()


@pytest.mark.slow
async def test_512_rollouts_with_256_runners_have_each_its_own_reward_and_spans() -> None:
    trainer = Trainer(algorithm="baseline", n_runners=RUNNERS)

    result = await trainer.fit_async(mixed, range(ROLLOUTS))

    assert result.status == "succeeded"
    assert result.rollouts.succeeded == ROLLOUTS
    assert result.dropped_spans == 0
    assert result.metrics == {"train_reward": pytest.approx((ROLLOUTS - 1) / 2 / ROLLOUTS)}
    ended = await trainer.store.query_rollouts()
    assert sorted(each.input for each in ended) == list(range(ROLLOUTS))
    assert len({each.attempt.worker_id for each in ended}) == RUNNERS  # type: ignore[attr-defined]
    for each in ended:
        spans = await trainer.store.query_spans(each.rollout_id)
        *messages, reward = spans
        assert sorted(map(str, map(get_message_value, messages))) == [f"{each.input}: {n}" for n in range(MESSAGES)]
        assert find_final_reward([reward]) == each.input / ROLLOUTS
        assert [span.sequence_id for span in spans] == list(range(1, MESSAGES + 2))
