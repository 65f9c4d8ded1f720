"""What the framework needs of a dataset."""

from typing import Protocol, SupportsIndex, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Dataset(Protocol[T_co]):
    """Samples by position: a list is one, and so is a map-style PyTorch or Hugging Face dataset."""

    def __getitem__(self, index: SupportsIndex, /) -> T_co: ...

    def __len__(self) -> int: ...
