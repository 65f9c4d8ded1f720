"""What can be wrong with a database, and what the driver's errors mean to a caller."""

import re
from dataclasses import dataclass, field
from typing import Any

from bson.errors import BSONError
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConfigurationError,
    DocumentTooLarge,
    OperationFailure,
    PyMongoError,
    WTimeoutError,
)
from pymongo.uri_parser import parse_uri

from lightning_core.errors import AccessDenied, InvalidRequest, LightningError, StoreError, StoreFull, StoreUnavailable

_SCHEME = re.compile(r"mongodb(\+srv)?://")
_FORM = (
    "it is like mongodb://user:password@host:27017/?replicaSet=rs0, where one of : / ? # [ ] @ in a name or a password "
    "is percent-encoded"
)


@dataclass(frozen=True, slots=True)
class Address:
    """An address of MongoDB.

    Raises:
        InvalidRequest: When it is not one. What stands before an `@`, or may be meant to, is never shown.
    """

    uri: str = field(repr=False)
    """With the password, if there is one."""

    def __post_init__(self) -> None:
        if not isinstance(self.uri, str):
            raise InvalidRequest(
                f"the uri of a MongoDB is a text; got {type(self.uri).__name__}: the store makes its own client, of "
                "the uri and client_options={...}"
            )
        scheme = _SCHEME.match(self.uri)
        if scheme is None:
            raise InvalidRequest(f"the uri of a MongoDB begins with mongodb:// or mongodb+srv://; {_FORM}")
        if scheme[1] is not None:
            return  # its hosts stand in the DNS, which is asked when it is opened
        try:
            parse_uri(self.uri, warn=False)
        except (PyMongoError, ValueError) as exc:
            # The driver quotes what it does not understand. That may be a part of a password.
            why = "" if "@" in self.uri else f": {exc}"
            raise InvalidRequest(f"the uri is not the address of a MongoDB{why}; {_FORM}") from None

    def __str__(self) -> str:
        """Return the scheme and the hosts."""
        scheme, _, rest = self.uri.partition("://")
        return f"{scheme}://{re.split('[/?]', rest.rpartition('@')[2], maxsplit=1)[0]}"


DUPLICATE_KEY = 11000
UNAUTHORIZED = 13
_AUTHENTICATION_FAILED = 18
_OUT_OF_DISK_SPACE = 14031

_AWAY = frozenset({6, 7, 64, 89, 91, 189, 10107, 11600, 11602, 13435, 13436})
"""Codes of a server that is shutting down, is not the primary any more, or could not confirm a write in time."""

OUT_OF_REACH = (AutoReconnect, WTimeoutError, TimeoutError)
"""What says that the server is away, or has no primary just now, and may be back soon."""


class UnusableDatabase(StoreError):
    """The database cannot be a store, or is of a newer version; it was left as it was."""


def explained(exc: Exception, address: Address) -> Exception:
    """Return the error that a caller understands, for one that carrying out an operation raised.

    Args:
        exc: What was raised. The store's own errors, and others than the database's, come back as they are.
        address: The database.
    """
    if isinstance(exc, LightningError):
        return exc
    if isinstance(exc, UnicodeEncodeError | OverflowError | DocumentTooLarge | BSONError):
        return InvalidRequest(f"this cannot be kept in MongoDB: {exc}")
    if isinstance(exc, OUT_OF_REACH):
        return StoreUnavailable(f"{address} cannot be reached: {in_short(exc)}")
    if isinstance(exc, ConfigurationError):
        return InvalidRequest(f"{address} cannot be used with these options: {in_short(exc)}")
    if isinstance(exc, OperationFailure):
        return _refused(exc, address)
    if isinstance(exc, PyMongoError):
        return StoreError(f"{address}: {in_short(exc)} ({type(exc).__name__})")
    return exc


def in_short(exc: BaseException) -> str:
    """Return what the driver says, without its account of all servers and timeouts."""
    message = str(exc) or type(exc).__name__
    for end in (" (configured timeouts", ", Timeout:", ", full error:", "\n"):
        message = message.partition(end)[0]
    return message[:300]


def _faults(exc: BulkWriteError) -> list[dict[str, Any]]:
    details = exc.details or {}
    return [*details.get("writeErrors", ()), *details.get("writeConcernErrors", ())]


def refuse_all_but_duplicates(exc: BulkWriteError) -> None:
    """Return when nothing was wrong but that keys were there already.

    Raises:
        BulkWriteError: The same, when it is about anything else, too.
    """
    if any(fault.get("code") != DUPLICATE_KEY for fault in _faults(exc)):
        raise exc


def is_away(exc: BulkWriteError) -> bool:
    """Whether operations failed because the server is going away."""
    return any(fault.get("code") in _AWAY for fault in _faults(exc))


def _refused(exc: OperationFailure, address: Address) -> StoreError:
    code, text = exc.code, in_short(exc)
    if isinstance(exc, BulkWriteError) and (faults := _faults(exc)):
        code, text = faults[0].get("code"), str(faults[0].get("errmsg", ""))[:300]
    if code == _AUTHENTICATION_FAILED:
        return AccessDenied(f"{address} refuses the name or the password in the uri")
    if code == UNAUTHORIZED:
        # The server quotes the whole command, with what was to be written.
        return AccessDenied(
            f"{address} does not allow this: {text.partition(' to execute command')[0]}; give the uri a user with the "
            "role readWrite"
        )
    if code == _OUT_OF_DISK_SPACE:
        return StoreFull(f"{address} has no room left ({text}); free space, or delete what has ended (delete_rollouts)")
    return StoreError(f"{address}: {text} (code {code})")
