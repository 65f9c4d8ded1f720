"""Held-out samples that are not held out."""

import logging
from collections.abc import Mapping
from typing import Any

from lightning_core.types import Dataset, sample_key, samples_of

logger = logging.getLogger(__name__)


def warn_of_overlap(test_dataset: Dataset[Any] | None, others: Mapping[str, Dataset[Any] | None]) -> None:
    """Warn of held-out samples that the algorithm is given, too: what it says of them flatters it.

    Only lists and tuples are looked into: to read another dataset may take long.

    Args:
        test_dataset: The held-out samples.
        others: By name, what the algorithm is given.
    """
    if not isinstance(test_dataset, list | tuple):
        return
    held_out = {sample_key(sample) for sample in test_dataset}
    for name, dataset in others.items():
        if not isinstance(dataset, list | tuple):
            continue
        both = held_out & {sample_key(sample) for sample in samples_of(dataset)}
        if both:
            logger.warning(
                "lightning.test_dataset_overlaps dataset=%s shared=%d of=%d: the algorithm is given held-out samples, "
                "too; the result on them flatters it",
                name,
                len(both),
                len(held_out),
            )
