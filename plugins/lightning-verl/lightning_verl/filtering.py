"""Which groups verl leaves out, where it is told to (`algorithm.filter_groups`)."""

from collections import Counter
from typing import Any

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
