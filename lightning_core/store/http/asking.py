"""What the methods of a client ask their requests by."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from lightning_core.store.base import LightningStore, Unset
from lightning_core.types import PaginatedResult

T = TypeVar("T")


class Asking(LightningStore):
    """A store whose methods are requests."""

    @abstractmethod
    async def _get(self, path: str) -> Any:
        """Return what is there."""

    @abstractmethod
    async def _get_or_none(self, path: str) -> Any:
        """Return what is there, or None when there is no record of this id."""

    @abstractmethod
    async def _change(self, path: str, body: Any, request_id: str | None, *, method: str = "POST") -> Any:
        """Ask for a change; without a request id, under a new one."""

    @abstractmethod
    async def _search(self, path: str, body: Any) -> Any:
        """Ask by a body for something that may be repeated without an id: mostly what changes nothing."""

    @abstractmethod
    async def _await(
        self, path: str, body: Mapping[str, Any], name: str, seconds: float | None, *, request_id: str | None = None
    ) -> Any:
        """Ask for something that takes its time; the field `name` says how long to wait."""

    @abstractmethod
    async def _find(
        self, path: str, body: Mapping[str, Any], limit: int, offset: int, read: Callable[[Any], list[T]]
    ) -> PaginatedResult[T]:
        """Ask for the result of a query."""

    @abstractmethod
    def _keep_key(self, claimed: Mapping[str, Any]) -> None:
        """Remember the attempt's key that comes with a claimed rollout."""


def quoted(name: str) -> str:
    """Return an id as a part of a path."""
    return quote(name, safe="")


def given(**fields: Any) -> dict[str, Any]:
    """Return the fields that were given."""
    return {name: value for name, value in fields.items() if not isinstance(value, Unset)}
