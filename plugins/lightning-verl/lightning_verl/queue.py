"""TransferQueue: what verl's trainer takes rows from, and the tasks that it goes through."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transfer_queue as tq
from lightning_tokens.learning.groups import LearnedRow, Lesson
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from torch.utils.data import Dataset
from transfer_queue import interface
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from lightning_core.errors import ConfigError

if TYPE_CHECKING:
    from transfer_queue import KVBatchMeta

ONLY_REWARD = "only_reward"
"""The tag of a row that says what all of its group's rewards are; see `Lesson.only_reward`."""


@contextmanager
def own_queue(config: DictConfig) -> Iterator[None]:
    """Have a queue during the block that this process has made: trainings would take each other's rows from one.

    Args:
        config: verl's `transfer_queue`.

    Raises:
        ConfigError: When another process in the cluster has made one.
    """
    try:
        # Only its creator learns where it listens; all others have joined it.
        if OmegaConf.select(tq.init(config), "controller.zmq_info") is None:
            interface._TQ_CONTROLLER = None  # `close` would end it for those whose it is
            raise ConfigError(
                "another training runs in this cluster of Ray (its TransferQueue is there), and each would take the "
                "rows of the other; wait for its end, or give this one a Ray of its own"
            )
        yield
    finally:
        tq.close()


class TaskNumbers(Dataset[dict[str, Any]]):  # type: ignore[misc]
    """The dataset that verl shuffles and goes through, as its `data.custom_cls`: the numbers of the tasks, from 0.

    The samples stay where the rollouts are enqueued, so they can be of any type, and verl tokenizes none of them.

    Args:
        data_files: How many there are, in decimal: verl's config has no better place for it.
        max_samples: The most to take, from the first on; -1 for all.
        _: What else verl gives: the tokenizer, the processor, the config.
    """

    def __init__(self, data_files: Any, max_samples: int = -1, **_: Any) -> None:
        count = int(data_files)
        self._count = count if max_samples < 0 else min(count, max_samples)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> dict[str, Any]:
        if not 0 <= number < self._count:
            raise IndexError(number)
        return {"raw_prompt": f"task {number}", "index": number}


class TransferQueueRows:
    """Writes groups into TransferQueue; see verl's `ReplayBuffer` for the form.

    A row has the key `{uid}_{session}_{index}`, a group the key `{uid}` and a status. Not for an event loop's thread:
    each call waits for the queue.
    """

    def begin(self, uid: str, *, partition: str) -> None:
        """Say that the rollouts of a group run."""
        tq.kv_put(key=uid, partition_id=partition, tag={"status": "running"})

    def end(self, uid: str, lesson: Lesson, *, partition: str, step: int) -> None:
        """Put the rows of a group, and then say that it has ended. Each row has its versions.

        One without rows is a failure: verl leaves it out, or asks for another one, where configured; of what is
        finished it wants to know the reward.
        """
        rows = lesson.rows
        if rows:
            tq.kv_batch_put(
                keys=[f"{uid}_{row.session}_{row.index}" for row in rows],
                partition_id=partition,
                fields=list_of_dict_to_tensordict([_fields(uid, row, step) for row in rows]),
                tags=[
                    {
                        "status": "success",
                        "prompt_len": len(row.prompt_ids),
                        "response_len": len(row.response_ids),
                        "seq_len": len(row.prompt_ids) + len(row.response_ids),
                        "global_steps": step,
                        ONLY_REWARD: lesson.only_reward,
                        **_age(row),
                    }
                    for row in rows
                ],
            )
        tq.kv_put(key=uid, partition_id=partition, tag={"status": "finished" if rows else "failure"})


def _age(row: LearnedRow) -> dict[str, int]:
    """Return with which weights a row was sampled, as verl names them."""
    assert row.versions is not None
    return dict(zip(("min_global_steps", "max_global_steps"), row.versions, strict=True))


def _fields(uid: str, row: LearnedRow, step: int) -> dict[str, Any]:
    prompts = torch.tensor(row.prompt_ids, dtype=torch.int64)
    responses = torch.tensor(row.response_ids, dtype=torch.int64)
    mask = torch.tensor(row.mask, dtype=torch.int64)
    input_ids = torch.cat([prompts, responses])
    fields: dict[str, Any] = {
        "uid": uid,
        "session_id": row.session,
        "global_steps": step,
        "prompts": prompts,
        "responses": responses,
        "response_mask": mask,
        "loss_mask": mask,
        "input_ids": input_ids,
        "position_ids": torch.arange(len(input_ids)),
        "rm_scores": torch.tensor(row.scores, dtype=torch.float32),
        "num_turns": row.num_turns,
        "answers": row.packed(),
        "multi_modal_inputs": {},
        "extra_fields": _age(row),
    }
    if row.logprobs is not None:
        fields["rollout_log_probs"] = torch.tensor(row.logprobs, dtype=torch.float32)
    return fields


def filter_by_lessons(buffer: Any) -> None:
    """Have verl's replay buffer leave out groups in which all rewards are the same.

    By itself it compares the sums of rows: of several rows of one rollout, or of rollouts that were rewarded at other
    calls, these say nothing of advantages. Rows without the tag stay compared so.
    """
    if getattr(buffer, "filter_groups_metric", None) is None:
        return
    by_rows = buffer._dapo_filtered_keys

    def by_lessons(partition_id: str) -> "tuple[set[str], Counter[float]]":
        known, finished = (buffer._dapo_classification_cache[partition_id], buffer.finished_keys[partition_id])
        for key, tag in buffer.partitions[partition_id].items():
            uid = key.split("_", 1)[0]
            if ONLY_REWARD in tag and uid in finished:
                known[uid] = tag[ONLY_REWARD]
        filtered: tuple[set[str], Counter[float]] = by_rows(partition_id)
        return filtered

    buffer._dapo_filtered_keys = by_lessons


class StoredRows:
    """Fields of a batch's rows in TransferQueue, row by row.

    Args:
        batch: Names the rows.
        fields: Which fields, as far as the rows have them.
    """

    def __init__(self, batch: "KVBatchMeta", fields: Sequence[str]) -> None:
        self._data: Any = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(fields))

    def numbers(self, name: str) -> list[np.ndarray] | None:
        """Return a field of numbers; None where there is none."""
        if name not in self._data.keys():  # noqa: SIM118 - a TensorDict is not a mapping
            return None
        rows = self._data[name].unbind()
        return [(row.float() if row.dtype == torch.bfloat16 else row).numpy() for row in rows]  # numpy has no bf16

    def objects(self, name: str) -> list[Any]:
        """Return a field of any values."""
        return list(self._data[name])  # a list, a stack or an array, as the queue's storage has it


def write_fields(batch: "KVBatchMeta", fields: Mapping[str, Sequence[np.ndarray]]) -> "KVBatchMeta":
    """Write fields of a batch's rows, an array for each row; return the batch that has them."""
    nested = {
        name: torch.nested.as_nested_tensor(
            [torch.as_tensor(row, dtype=torch.float32) for row in values], layout=torch.jagged
        )
        for name, values in fields.items()
    }
    return tq.kv_batch_put(
        keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(nested, batch_size=len(batch.keys))
    )
