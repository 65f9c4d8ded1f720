"""What has to hold when all is over, whoever was killed in between."""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from lightning_core.store import LightningStore
from lightning_core.types import Attempt, Rollout
from tests.chaos.playground import Playground


async def check_run(playground: Playground, store_file: Path, run_id: str, *, rollouts: int) -> None:
    """Check a run that has ended.

    Args:
        playground: Where it was.
        store_file: Its store, which nobody has open.
        run_id: The run.
        rollouts: How many there were to do.
    """
    from lightning_sqlite import SqliteLightningStore  # late: where it is not installed, this is not called

    seen = json.loads((playground.folder / "seen.json").read_text())
    # The algorithm's view: each task once, and succeeded, with the reward of just this task.
    assert Counter(each["status"] for each in seen) == {"succeeded": rollouts}
    assert sorted(each["input"] for each in seen) == list(range(rollouts))
    assert [each["reward"] for each in seen] == [float(each["input"]) for each in seen]
    store = SqliteLightningStore(store_file, run_id=run_id)
    try:
        found = await store.query_rollouts()
        assert sorted(each.rollout_id for each in found) == sorted(each["rollout"] for each in seen)
        attempts = {each.rollout_id: list(await store.query_attempts(each.rollout_id)) for each in found}
        for rollout in found:
            check_attempts(rollout, attempts[rollout.rollout_id], dead=playground.dead)
        assert sorted(each[-1].attempt_id for each in attempts.values()) == sorted(each["attempt"] for each in seen)
        await check_acknowledged(playground, store)
    finally:
        await store.aclose()


def check_attempts(rollout: Rollout, attempts: Sequence[Attempt], *, dead: Collection[int]) -> None:
    """Check that a rollout has succeeded by its last attempt, and that the others died with their process."""
    assert rollout.status == "succeeded"
    assert attempts[-1].status == "succeeded"
    for lost in attempts[:-1]:
        assert lost.status in ("failed", "unresponsive"), lost
        assert "failure" not in (lost.metadata or {}), lost
        assert lost.worker_id is not None
        assert int(lost.worker_id.split("-")[-3]) in dead, f"{lost} was lost, and nobody killed its process"


async def check_acknowledged(playground: Playground, store: LightningStore) -> None:
    """Check that everything is there that the store has acknowledged to anybody."""
    reported = {entry["attempt"]: entry for entry in playground.entries("reported")}
    wanted: Counter[tuple[str, str, str]] = Counter()
    for entry in (*playground.entries("spans"), *reported.values()):
        wanted.update({(entry["rollout"], entry["attempt"], span_id): 1 for span_id in entry["spans"]})
    assert wanted
    for rollout_id in {rollout_id for rollout_id, _, _ in wanted}:
        spans = await store.query_spans(rollout_id)
        there = Counter((rollout_id, span.attempt_id, span.span_id) for span in spans)
        assert set(there.values()) == {1}
        assert {key for key in wanted if key[0] == rollout_id} <= set(there)
        numbers = Counter((span.attempt_id, span.sequence_id) for span in spans)
        assert set(numbers.values()) == {1}
    for attempt_id, entry in reported.items():
        by_id = {each.attempt_id: each for each in await store.query_attempts(entry["rollout"])}
        assert by_id[attempt_id].status == entry["status"]


async def check_clients(playground: Playground, store: LightningStore, names: Sequence[str], *, rollouts: int) -> None:
    """Check what the clients of `clients.py` have done, of whom none was killed, and close the store.

    Args:
        playground: Where they were.
        store: Their store.
        names: Theirs.
        rollouts: How many each of them has enqueued.
    """
    try:
        total = len(names) * rollouts
        found = await store.query_rollouts()
        assert Counter(each.status for each in found) == {"succeeded": total}
        inputs = Counter((each.input["by"], each.input["number"]) for each in found)
        assert inputs == {(name, number): 1 for name in names for number in range(rollouts)}
        attempts = [each for rollout in found for each in await store.query_attempts(rollout.rollout_id)]
        # So nothing was claimed twice, and nothing was lost.
        claims = playground.entries("claimed")
        assert sorted(each["attempt"] for each in claims) == sorted(each.attempt_id for each in attempts)
        assert len(attempts) == total
        assert {each["enqueued"] for each in claims} == {each.rollout_id for each in found}
        assert [await store.load_state(name) for name in names] == [rollouts - 1] * len(names)
        await check_acknowledged(playground, store)
        assert (await store.statistics())["total_spans"] == 3 * total
    finally:
        await store.aclose()
