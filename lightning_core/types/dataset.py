"""What the framework needs of a dataset."""

from typing import Protocol, SupportsIndex, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Dataset(Protocol[T_co]):
    """Samples by position: a list is one, and so is a map-style PyTorch or Hugging Face dataset."""

    def __getitem__(self, index: SupportsIndex, /) -> T_co: ...

    def __len__(self) -> int: ...


def samples_of(dataset: Dataset[T_co]) -> list[T_co]:
    """Return all samples of a dataset, each of them read once, by its position."""
    return [dataset[index] for index in range(len(dataset))]
