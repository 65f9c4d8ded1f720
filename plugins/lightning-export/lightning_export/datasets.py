"""`agl export RUN --to jsonl|parquet|hf`: rows of a run in files."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet as pq
from pydantic_core import to_json

from lightning_core.errors import ConfigError
from lightning_core.runs.folder import RunFolder
from lightning_core.types import RolloutMode
from lightning_export.attempts import Ended, Reading, Wanted, read_ended
from lightning_export.rows import Row, RowKind, RowsOf

GROUP_BYTES = 16_000_000
"""When rows have so many bytes, they are written as one group."""

_IDS = pa.list_(pa.int64())
_TOOL_CALL = pa.struct(
    {"id": pa.string(), "type": pa.string(), "function": pa.struct({"name": pa.string(), "arguments": pa.string()})}
)
_TEXTS = ("role", "content", "reasoning_content", "name", "tool_call_id")
_MESSAGE = pa.struct({**{name: pa.string() for name in _TEXTS}, "tool_calls": pa.list_(_TOOL_CALL)})
_COMMON = {
    **{name: pa.string() for name in ("run_id", "rollout_id", "attempt_id", "mode", "resources_id", "input")},
    "reward": pa.float64(),
}
_SCHEMAS: Mapping[RowKind, pa.Schema] = {
    "messages": pa.schema({**_COMMON, "messages": pa.list_(_MESSAGE), "tools": pa.string()}),
    "sft": pa.schema({**_COMMON, "prompt": pa.list_(_MESSAGE), "completion": pa.list_(_MESSAGE), "tools": pa.string()}),
    "trajectories": pa.schema(
        {
            **_COMMON,
            "prompt_ids": _IDS,
            "response_ids": _IDS,
            "loss_mask": pa.list_(pa.int8()),
            "logprobs": pa.list_(pa.float64()),
            "call_rewards": pa.list_(pa.float64()),
            "model": pa.string(),
        }
    ),
    "triplets": pa.schema(
        {
            **_COMMON,
            "prompt": pa.list_(_MESSAGE),
            "response": _MESSAGE,
            "prompt_ids": _IDS,
            "response_ids": _IDS,
            "logprobs": pa.list_(pa.float64()),
            "call_reward": pa.float64(),
            **{name: pa.string() for name in ("model", "finish_reason", "error")},
        }
    ),
}
_SPLITS = {"train": "train", "val": "validation", "test": "test", None: "train"}
"""What Hugging Face calls the rollouts of each mode."""


Add = Callable[[list[Row]], None]
"""Adds the rows of one rollout, all or none."""
Open = Callable[[Path, pa.Schema], AbstractContextManager[Add]]


@contextmanager
def _lines(path: Path, schema: pa.Schema) -> Iterator[Add]:
    with open(path, "wb") as file:

        def add(rows: list[Row]) -> None:
            # JSON has no numbers that are not finite: they are null.
            file.write(b"".join(to_json(row, inf_nan_mode="null") + b"\n" for row in rows))

        yield add


@contextmanager
def _parquet(path: Path, schema: pa.Schema) -> Iterator[Add]:
    waiting: list[pa.RecordBatch] = []
    weight = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as file:

        def add(rows: list[Row]) -> None:
            nonlocal weight
            flat = [{name: _flat(name, value) for name, value in row.items()} for row in rows]
            waiting.append(pa.RecordBatch.from_pylist(flat, schema=schema))
            weight += waiting[-1].nbytes
            if weight > GROUP_BYTES:
                write()

        def write() -> None:
            nonlocal weight
            weight = 0
            file.write_table(pa.Table.from_batches(waiting, schema))
            waiting.clear()

        yield add
        if waiting:
            write()


@contextmanager
def _splits(folder: Path, schema: pa.Schema) -> Iterator[Add]:
    data = folder / "data"
    data.mkdir(parents=True)
    with ExitStack() as files:
        opened: dict[str, Add] = {}

        def add(rows: list[Row]) -> None:
            split = _SPLITS[rows[0]["mode"]]
            if split not in opened:
                opened[split] = files.enter_context(_parquet(data / f"{split}.parquet", schema))
            opened[split](rows)

        yield add


def _why(kind: RowKind, reading: Reading) -> str:
    if not reading.rollouts:
        return "none of its rollouts is wanted: those count that succeeded, in the --mode, with the --min-reward"
    missing = "token ids of model calls" if kind == "trajectories" else "model calls"
    return f"no recorded {missing} in its {reading}"


def _flat(name: str, value: Any) -> Any:
    """Return what fits the column: messages have texts, and what is nested otherwise is JSON."""
    if name == "tools":
        return _text(value)
    if name == "response" and value is not None:
        return _flat_message(value)
    if name in ("messages", "prompt", "completion"):
        return [_flat_message(message) for message in value]
    return value


def _flat_message(message: Mapping[str, Any]) -> dict[str, Any]:
    texts = {name: _text(message.get(name)) for name in _TEXTS}
    return {**texts, "tool_calls": message.get("tool_calls")}


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _export(opened: Open) -> Callable[..., str]:
    def export(
        run: RunFolder,
        target: Path,
        *,
        rows: RowKind = "messages",
        best: int | None = None,
        min_reward: float | None = None,
        mode: RolloutMode | None = None,
        redact: bool = False,
    ) -> str:
        """Write rows of the rollouts that succeeded.

        Args:
            run: The run.
            target: The file or folder to make.
            rows: What a row is; see `RowsOf`.
            best: Of each input only so many rollouts, with the highest rewards; by default 1 for `sft`, else all.
            min_reward: Only rollouts with at least this reward.
            mode: Only rollouts of this mode.
            redact: Replace secrets, and leave out token ids.

        Raises:
            ConfigError: When there is no row, or `redact` would leave nothing of them.
        """
        if redact and rows == "trajectories":
            raise ConfigError("--redact leaves out token ids, and trajectories are nothing else; take --rows messages")
        if best is None and rows == "sft":
            best = 1
        return asyncio.run(
            _write(run, opened, target, rows, Wanted(mode=mode, best=best, min_reward=min_reward, redact=redact))
        )

    return export


async def _write(run: RunFolder, opened: Open, target: Path, kind: RowKind, wanted: Wanted) -> str:
    reading, rows_of = Reading(), RowsOf(run, kind)
    count = 0
    with opened(target, _SCHEMAS[kind]) as add:

        def written(ended: Ended) -> int:
            if rows := rows_of(ended):
                add(rows)
            return len(rows)

        async for ended in read_ended(run, wanted, RowsOf(run, kind)):
            count += reading.make(written, ended) or 0
    of_answers = ", ".join(f"{number:,} {reason}" for reason, number in sorted(rows_of.refused.items()))
    note = f"; answers in no row: {of_answers}" if of_answers else ""
    if not count:
        raise ConfigError(f"run {run.run_id} has no {kind} to write: {_why(kind, reading)}{note}")
    return f"{count:,} rows of {reading}{note}"


jsonl = _export(_lines)
"""A line of JSON for each row."""
parquet = _export(_parquet)
"""One Parquet file. `tools`, and contents that are not texts, are JSON."""
hf = _export(_splits)
"""A folder for `datasets.load_dataset`, with a split for each mode; its files are those of `parquet`."""
