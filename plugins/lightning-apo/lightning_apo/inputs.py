"""What a prompt search is given: the prompts that it tunes, and its samples."""

import hashlib
import json
import random
import re
from collections.abc import Sequence
from typing import Any

from lightning_core.errors import InvalidInput
from lightning_core.types import Dataset, NamedResources, PromptTemplate, sample_key

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""What the text of an object has that is another one in each process."""


def tuned_prompts(
    resources: NamedResources, names: Sequence[str] | None, *, algorithm: str
) -> dict[str, PromptTemplate]:
    """Return the prompts with these names; all of them where there are no names.

    Raises:
        InvalidInput: When there is none, a name does not belong to a prompt, or a prompt is broken.
    """
    prompts = {name: resource for name, resource in resources.items() if isinstance(resource, PromptTemplate)}
    if not prompts:
        raise InvalidInput(
            f"{algorithm} improves the prompt templates of the initial resources, and they have none; "
            "give one, as in initial_resources={'main_prompt': PromptTemplate(template='...')}"
        )
    if unknown := [name for name in names or () if name not in prompts]:
        raise InvalidInput(
            f"prompt_names has {unknown[0]!r}, which is not a prompt template of the initial resources; "
            f"they have {', '.join(map(repr, prompts))}"
        )
    tuned = {name: prompt for name, prompt in prompts.items() if names is None or name in names}
    for name, prompt in tuned.items():
        try:
            prompt.placeholders()
        except ValueError as exc:
            raise InvalidInput(f"prompt {name!r} cannot be used: {exc}") from exc
    return tuned


def split_samples(
    train_dataset: Dataset[Any] | None, val_dataset: Dataset[Any] | None, *, algorithm: str
) -> tuple[list[Any], list[Any]]:
    """Return the samples that edits are made from, and those that prompts are chosen by: none is both.

    Raises:
        InvalidInput: When a dataset is missing or empty, or nothing is left to learn from.
    """
    given = {"train_dataset": train_dataset, "val_dataset": val_dataset}
    for name, dataset in given.items():
        if dataset is None or len(dataset) == 0:
            what = "none" if dataset is None else "an empty one"
            raise InvalidInput(
                f"{algorithm} needs a {name}, and got {what}; it learns from one dataset and chooses by another"
            )
    train, val = ([data[index] for index in range(len(data))] for data in given.values() if data is not None)
    taken = {sample_key(sample) for sample in val}  # compared by their content
    samples = [sample for sample in train if sample_key(sample) not in taken]
    if not samples:
        raise InvalidInput(
            f"all {len(train)} samples of the train_dataset are in the val_dataset, too; a prompt is chosen on samples "
            "that no edit was made from, so split them"
        )
    return samples, val


def digest(text: str) -> str:
    """Return a few characters that tell texts apart."""
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def digest_of_all(samples: Sequence[Any]) -> str:
    """Return a few characters that tell lists of samples apart, in every process."""
    return digest("\n".join(_ADDRESS.sub("", sample_key(sample)) for sample in samples))


def seed_of(*key: str | int) -> int:
    """Derive a seed from what it is for.

    The same key gives the same seed in every process and on every machine.

    Returns:
        A number of 31 bits, which every model endpoint takes.
    """
    digest = hashlib.blake2b(json.dumps(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 33


def shuffled(size: int, *, seed: int) -> list[int]:
    """Return the indexes of so many samples, in an order that the seed decides."""
    return random.Random(seed).sample(range(size), size)
