"""What is there when the file is opened again, whatever happened to the process."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lightning_sqlite import SqliteLightningStore

from lightning_core.store import LightningStore
from lightning_core.types import RolloutConfig

KILLS = 5
BUSY_WRITER = Path(__file__).with_name("busy_writer.py")


def work_until_killed(path: Path, lines: int) -> list[dict[str, Any]]:
    """Let a process work, kill it after so many lines, and return everything that it was told."""
    with subprocess.Popen([sys.executable, str(BUSY_WRITER), str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        told += process.stdout.readlines()
    # A line that the kill cut off was not printed.
    return [json.loads(line) for line in told if line.endswith(b"\n")]


async def check(store: LightningStore, told: list[dict[str, Any]]) -> None:
    """Check that the store has everything that a process was told that it has."""
    states: dict[str, str] = {}
    for fact in told:
        if fact["what"] == "state":
            states[fact["name"]] = fact["last"]
            continue
        rollout_id = fact["rollout"]
        rollout = await store.get_rollout_by_id(rollout_id)
        assert rollout is not None, fact
        if fact["what"] == "claimed":
            assert [attempt.attempt_id for attempt in await store.query_attempts(rollout_id)] == [fact["attempt"]]
        elif fact["what"] == "span":
            [span] = await store.query_spans(rollout_id, span_id=fact["span"])
            assert span.sequence_id == fact["sequence"]
        elif fact["what"] == "succeeded":
            assert rollout.status == "succeeded"
    for name, last in states.items():
        state = await store.load_state(name)
        later = await store.get_rollout_by_id(state["last"])
        assert later is not None
        assert later.status == "succeeded"
        acknowledged_last = await store.get_rollout_by_id(last)
        assert acknowledged_last is not None
        assert later.start_time >= acknowledged_last.start_time


@pytest.mark.slow
async def test_everything_acknowledged_survives_kills_at_random_moments(path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # shown when the test fails
    moments = random.Random(seed)
    told: list[dict[str, Any]] = []
    for _ in range(KILLS):
        told += work_until_killed(path, moments.randint(1, 600))
        store = SqliteLightningStore(path, run_id="run-1")
        await check(store, told)
        statistics = await store.statistics()
        rollouts = await store.query_rollouts()
        assert statistics["total_rollouts"] == len(rollouts)
        spans = [await store.query_spans(rollout.rollout_id) for rollout in rollouts]
        assert statistics["total_spans"] == sum(len(page) for page in spans)
        assert all([span.sequence_id for span in page] in ([], [1, 2]) for page in spans)
        await store.aclose()


async def test_the_queue_keeps_its_order_and_its_retries(path: Path) -> None:
    store = SqliteLightningStore(path, run_id="run-1")
    retry = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    first, second, third = [await store.enqueue_rollout(n, config=retry) for n in range(3)]
    assert (await store.dequeue_rollout()) is not None
    await store.update_attempt(first.rollout_id, "latest", status="failed")
    await store.aclose()
    store = SqliteLightningStore(path, run_id="run-1")
    fourth = await store.enqueue_rollout(3)
    claimed = await store.dequeue_many_rollouts(limit=10)
    assert [item.rollout_id for item in claimed] == [item.rollout_id for item in (second, third, first, fourth)]
    assert [item.attempt.sequence_id for item in claimed] == [1, 1, 2, 1]
    await store.aclose()


@pytest.mark.parametrize("durability", ["process", "power"])
async def test_a_power_cut_is_taken_care_of_only_where_that_was_asked_for(path: Path, durability: Any) -> None:
    store = SqliteLightningStore(path, durability=durability)
    backend: Any = store._backend
    level = await backend._writer.do(lambda: backend._session.execute("PRAGMA synchronous").fetchone()[0])
    assert level == {"process": 1, "power": 2}[durability]
    await store.aclose()
