"""Run folders, SQLite files and config files of earlier versions open as they did; those in `fixtures/first` stay."""

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lightning_core.testing import FakeClock
from lightning_core.types import EnqueueRolloutRequest

lightning_sqlite = pytest.importorskip("lightning_sqlite")

FIRST = Path(__file__).with_name("fixtures") / "first"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files, as if this machine had made them."""
    folder = tmp_path_factory.mktemp("first") / "first"
    shutil.copytree(FIRST, folder)
    for file in [*folder.rglob("manifest.json"), folder / "expected.json"]:
        text = file.read_text(encoding="utf-8")
        file.write_text(
            text.replace("@FOLDER@", str(folder)).replace("@PYTHON@", platform.python_version()), encoding="utf-8"
        )
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> Any:
    return json.loads((folder / "expected.json").read_text(encoding="utf-8"))


def agl(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "lightning_core", *arguments],
        cwd=folder,
        env={**os.environ, "AGL_RUNS_DIR": str(folder / "runs")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_config_file_means_what_it_meant(folder: Path, expected: Any) -> None:
    # A later version may add options; none of the former ones is gone, or has another default, but that runner
    # processes come from a fork server, which starts them sooner, and that some have no effect any more.
    # Comments say what is planned, not what is meant.
    now = agl(folder, "train", "full.toml", "--dry-run").splitlines()
    then = [line for line in expected["config"].splitlines() if not line.startswith("#")]
    assert [line for line in then if line not in now] == [
        "  jointly: false",
        "  base_url: null",
        "  api_key: null",
        "  cancelled_store_timeout_seconds: 1.0",
        "  export_timeout_seconds: 1.0",
        "  global_provider: true",
        "  heartbeat_launch_mode: thread",
        "  terminate_timeout: 10.0",
        "  main_process: algorithm",
        "  start_method: spawn",
    ]


async def test_sqlite_file_has_the_records_that_it_had(folder: Path, expected: Any) -> None:
    at_the_time = FakeClock(expected["store"]["workers"][0]["last_heartbeat_time"])
    file = Path(expected["runs"][0]["folder"], "store.db")
    store = lightning_sqlite.SqliteLightningStore(file, run_id="run-0000000000000001", clock=at_the_time)
    try:
        then = expected["store"]
        then["resources"] = [{"parent_id": None, **each} for each in then["resources"]]  # that was not known then
        assert has(await records(store), then)
        asked = [EnqueueRolloutRequest(input=each["input"]) for each in expected["store"]["rollouts"]]
        repeated = await store.enqueue_many_rollouts(asked, request_id="step/3")
        assert [each.rollout_id for each in repeated] == [each["rollout_id"] for each in expected["store"]["rollouts"]]
        claimed = [await store.dequeue_rollout("worker-0") for _ in range(3)]
        assert [each and each.input["task"] for each in claimed] == [3, 1, None]
    finally:
        await store.aclose()


async def records(store: Any) -> dict[str, Any]:
    """Return all that a store says of its run, as JSON has it."""
    rollouts = await store.query_rollouts(sort_by="start_time")
    return {
        "rollouts": [each.model_dump(mode="json") for each in rollouts],
        "attempts": [
            attempt.model_dump(mode="json")
            for each in rollouts
            for attempt in await store.query_attempts(each.rollout_id)
        ],
        "spans": [
            span.model_dump(mode="json") for each in rollouts for span in await store.query_spans(each.rollout_id)
        ],
        "resources": [each.model_dump(mode="json") for each in await store.query_resources()],
        "workers": [each.model_dump(mode="json") for each in await store.query_workers()],
        "state": await store.load_state("search"),
        "kept_runs": sorted(await store.kept_runs()),
    }


def has(found: Any, earlier: Any) -> bool:
    """Whether what is found has all that was there, and maybe what was not known then."""
    if isinstance(earlier, dict):
        return all(name in found and has(found[name], value) for name, value in earlier.items())
    if isinstance(earlier, list):
        return len(found) == len(earlier) and all(map(has, found, earlier))
    return bool(found == earlier)


def test_runs_are_listed_and_shown_as_they_were(folder: Path, expected: Any) -> None:
    pytest.importorskip("lightning_viewer", reason="it has agl show")
    finished, killed = expected["runs"]
    assert has(json.loads(agl(folder, "runs", "--json")), [finished, killed])
    manifest = json.loads(Path(finished["folder"], "manifest.json").read_text())
    shown = json.loads(agl(folder, "show", "--json", finished["id"]))
    assert has(shown, {"standing": "succeeded", **manifest})
    assert agl(folder, "show", killed["id"]).startswith(f"{killed['id']}  killed\n")


def test_run_that_was_killed_goes_on_where_it_was(folder: Path, expected: Any) -> None:
    finished, killed = expected["runs"]
    agl(folder, "resume", killed["id"], "--force")  # options of later versions have come into its config
    resumed, whole = (json.loads(Path(each["folder"], "manifest.json").read_text()) for each in (killed, finished))
    assert resumed["outcome"] == "succeeded"
    # The attempt that was cut off is the one that is retried.
    assert resumed["result"]["rollouts"] == {**whole["result"]["rollouts"], "retried": 1, "unrewarded": 0}
    assert resumed["result"]["comparison"] == {**whole["result"]["comparison"], "kept_back": False}
    assert all("unset" in change for each in resumed["resumed"] for change in each["changes"])
