"""The dataset that verl shuffles and goes through: which task is next, and no more.

The samples stay where the rollouts are enqueued, so they can be of any type, and verl tokenizes none of them.
"""

from typing import Any

from torch.utils.data import Dataset


class TaskNumbers(Dataset[dict[str, Any]]):  # type: ignore[misc]
    """The numbers of the tasks, from 0; verl makes it, as its `data.custom_cls`.

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
