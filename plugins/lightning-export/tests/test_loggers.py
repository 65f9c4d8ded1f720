"""Loggers, by what the other side's own readers find, and the way to one's own."""

import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
import wandb
from wandb.proto import wandb_internal_pb2

from lightning_core import Trainer, rollout
from lightning_core.config import load_job
from lightning_core.errors import ConfigError, LightningError
from lightning_core.runs.loggers import RunLogger


@rollout
def answer(task: int) -> float:
    if task == 9:
        raise ValueError("no answer")
    return task / 10


def train(*loggers: object) -> str:
    """Run 10 samples twice: each time 9 rewards, of mean 0.4, and one failure."""
    trainer = Trainer(algorithm={"name": "baseline", "n_epochs": 2}, loggers=loggers)
    return trainer.fit(answer, list(range(10))).run_id


TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from lightning_export.loggers import TensorBoardLogger
from test_loggers import train

def read(folder):
    events = EventAccumulator(folder)
    events.Reload()
    tags = events.Tags()["scalars"]
    return {tag: [(each.step, round(each.value, 3)) for each in events.Scalars(tag)] for tag in tags}

folder = "logs/" + train({"name": "tensorboard", "log_dir": "logs"})
found = read(folder)
for steps in ([0], [1, 2, 3, 3]):  # as when the run is resumed, and ends before its first step; and once more
    again = TensorBoardLogger(log_dir="logs")
    again.open(folder.rpartition("/")[2])
    for step in steps:
        again.write({"train_reward": 0.5}, step)
    again.close("interrupted")
resumed = read(folder)
print(json.dumps([found, [resumed["train_reward"], resumed["reward/mean"]]]))
"""


def test_tensorboard_reads_the_numbers_of_each_step_also_of_a_resumed_run(tmp_path):
    # In a process of its own: these libraries import boto3 where it is, which other tests take for an agent's.
    place = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-c", TENSORBOARD], cwd=tmp_path, env=place, text=True, capture_output=True, check=True
    )
    read, resumed = json.loads(done.stdout)
    assert read["train_reward"] == read["reward/mean"] == [[1, 0.4], [2, 0.4]]
    assert read["rollouts/succeeded"] == [[1, 9], [2, 18]]
    assert read["rollouts/failed"] == [[1, 1], [2, 2]]
    (_, low), (_, lower) = read["reward/low"]
    (_, high), (_, higher) = read["reward/high"]
    assert low < lower < 0.4 < higher < high
    assert resumed == [[[1, 0.4], [2, 0.4], [3, 0.5], [3, 0.5]], read["reward/mean"]]


def test_weights_and_biases_keeps_the_run_under_its_own_id(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    try:
        run_id = train({"name": "wandb", "project": "tests", "mode": "offline", "dir": str(tmp_path)})
    finally:
        wandb.teardown()
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert file.name == f"run-{run_id}.wandb"
    rows, summary = read_wandb(file)
    assert [(row["_step"], row["train_reward"], row["rollouts/failed"]) for row in rows] == [
        (1, pytest.approx(0.4), 1),
        (2, pytest.approx(0.4), 2),
    ]
    assert summary["status"] == "succeeded"


def read_wandb(file: Path) -> tuple[list[dict[str, float]], dict[str, object]]:
    """Read the rows and the summary of an offline run: wandb's records, in a log of LevelDB's form after 7 bytes."""
    data, place, whole = file.read_bytes(), 7, b""
    rows, summary = list[dict[str, float]](), dict[str, object]()
    while place < len(data):
        if BLOCK - place % BLOCK < 7:  # no room for a head: what is left of the block is padding
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind not in (WHOLE, LAST):
            continue
        record, whole = wandb_internal_pb2.Record.FromString(whole), b""
        if record.WhichOneof("record_type") == "history":
            rows.append({item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item})
        for item in record.summary.update:
            summary[item.key or item.nested_key[0]] = json.loads(item.value_json)
    return rows, summary


BLOCK, WHOLE, LAST = 32_768, 1, 4


class Lines(RunLogger):
    """A logger of a third party: a line a step."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def open(self, run_id: str) -> None:
        self.lines.append("open")

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        self.lines.append(f"{step}: {scalars['reward/mean']:.1f} {sorted(scalars.keys() & {'train_reward'})}")

    def close(self, status: str) -> None:
        self.lines.append(status)


def test_another_logger_needs_three_methods():
    logger = Lines()
    train(logger)
    assert logger.lines == ["open", "1: 0.4 ['train_reward']", "2: 0.4 ['train_reward']", "succeeded"]


class Stuck(Lines):
    """One that does not come back from its first step."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = threading.Event()

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        self.lines.append("writes")
        self.may_end.wait(60)


def test_a_logger_that_hangs_is_left_alone(caplog, monkeypatch):
    monkeypatch.setattr("lightning_core.runs.loggers.WRITE_SECONDS", 0.2)
    stuck, other = Stuck(), Lines()
    try:
        train(stuck, other)
    finally:
        stuck.may_end.set()
    assert stuck.lines == ["open", "writes"]
    assert other.lines[-1] == "succeeded"
    assert "lightning.logger_hangs logger=Stuck" in caplog.text


class Closed(Lines):
    """One that cannot begin."""

    def open(self, run_id: str) -> None:
        raise OSError("the disk is full")


def test_a_logger_that_cannot_begin_is_named():
    with pytest.raises(LightningError, match=r"Closed cannot begin run run-.*: OSError: the disk is full"):
        train(Closed())


def test_a_config_names_loggers_and_says_what_is_wrong(tmp_path):
    (tmp_path / "toy_of_loggers.py").write_text(
        "from lightning_core import rollout\n\n@rollout\ndef agent(task: int) -> float:\n    return 1.0\n"
    )
    config = tmp_path / "config.yaml"
    text = "agent: toy_of_loggers:agent\nalgorithm: baseline\nloggers: [{}]\ntrain_dataset: [1]\n"
    for logger, message in (
        ("wandbb", r":3: loggers: no logger named 'wandbb'.*Did you mean 'wandb'"),
        ("{name: wandb, project: 3}", r":3: logger 'wandb': project is 3"),
    ):
        config.write_text(text.format(logger))
        with pytest.raises(ConfigError, match=message):
            load_job(config)
    config.write_text(text.format("{name: wandb, mode: offline}"))
    assert load_job(config).config.loggers == [{"name": "wandb", "mode": "offline"}]
