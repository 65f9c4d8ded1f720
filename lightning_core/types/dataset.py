"""Samples: what the framework needs of a dataset, and one model call as a sample to learn from."""

import json
from typing import Any, Protocol, SupportsIndex, TypeVar

from pydantic import BaseModel, Field

T_co = TypeVar("T_co", covariant=True)


class Dataset(Protocol[T_co]):
    """Samples by position: a list is one, and so is a map-style PyTorch or Hugging Face dataset."""

    def __getitem__(self, index: SupportsIndex, /) -> T_co: ...

    def __len__(self) -> int: ...


def samples_of(dataset: Dataset[T_co]) -> list[T_co]:
    """Return all samples of a dataset, each of them read once, by its position."""
    return [dataset[index] for index in range(len(dataset))]


def sample_key(sample: Any) -> str:
    """Return a text that is the same for equal samples: as JSON, where that has no form for it by what is in it.

    Samples are equal, too, where one went through a file or a store and the other did not: a list is a tuple.
    """
    try:
        return json.dumps(sample, sort_keys=True, default=_content)
    except (TypeError, ValueError):  # keys that JSON cannot sort, or a value that holds itself
        return repr(sample)


def _content(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    fields = getattr(value, "__dict__", None)  # not by repr, which may be the address
    return repr(value) if not fields or isinstance(value, type) else fields


class Triplet(BaseModel):
    """What a model was given, what it answered, and how good that was."""

    prompt: Any
    """What the model was given; the adapters put a dict with `token_ids` here."""
    response: Any
    """What it answered; the adapters put a dict with `token_ids` here."""
    reward: float | None = None
    """How good the answer was; None when not given."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Anything else that is known of the call."""
