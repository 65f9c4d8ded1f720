"""From learned rows to what verl's trainer reads: entries of TransferQueue."""

from collections import Counter
from typing import Any

import torch
import transfer_queue as tq
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from lightning_verl.learning import LearnedRow, Lesson


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


ONLY_REWARD = "only_reward"
"""The tag of a row that says what all of its group's rewards are; see `Lesson.only_reward`."""


def filter_by_lessons(buffer: Any) -> None:
    """Have verl's replay buffer leave out groups in which all rewards are the same.

    By itself it compares the sums of rows: of several rows of one rollout, or of rollouts that were rewarded at other
    calls, these say nothing of advantages. Rows without the tag stay compared so.
    """
    if getattr(buffer, "filter_groups_metric", None) is None:
        return
    by_rows = buffer._dapo_filtered_keys

    def by_lessons(partition_id: str) -> "tuple[set[str], Counter[float]]":
        known, finished = buffer._dapo_classification_cache[partition_id], buffer.finished_keys[partition_id]
        for key, tag in buffer.partitions[partition_id].items():
            uid = key.split("_", 1)[0]
            if ONLY_REWARD in tag and uid in finished:
                known[uid] = tag[ONLY_REWARD]
        filtered: tuple[set[str], Counter[float]] = by_rows(partition_id)
        return filtered

    buffer._dapo_filtered_keys = by_lessons
