"""The example runs on a real server, and what it did is there afterwards."""

import asyncio
import shutil
from pathlib import Path

import pytest

pytest.importorskip("lightning_mongo", reason="this is about its store")

from lightning_mongo import MongoLightningStore
from lightning_mongo.testing import PACKAGE, Mongod, find_mongod
from whole_run import run


@pytest.mark.slow
@pytest.mark.skipif(find_mongod() is None, reason=f"there is no mongod; {PACKAGE} has one")
def test_the_config_trains_and_its_run_is_kept(tmp_path: Path) -> None:
    for name in ("config.yaml", "shouting.py", "words.json"):
        shutil.copy(Path(__file__).with_name(name), tmp_path)
    with Mongod() as mongod:
        run("-m", "lightning_core", "train", "config.yaml", "--set", f"store.uri={mongod.uri}", runs=tmp_path)
        assert asyncio.run(_statuses(mongod.uri)) == ["succeeded"] * 3


async def _statuses(uri: str) -> list[str]:
    store = MongoLightningStore(uri, partition_id="example")
    try:
        [run_id] = await store.kept_runs()
        return [rollout.status for rollout in await store.for_run(run_id).query_rollouts()]
    finally:
        await store.aclose()
