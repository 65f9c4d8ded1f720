"""What can be wrong with a database, and what the driver's errors mean to a caller."""

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

from lightning_core.errors import (
    AccessDenied,
    InvalidRequest,
    LightningError,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from lightning_mongo.address import Address

DUPLICATE_KEY = 11000
UNAUTHORIZED = 13
_AUTHENTICATION_FAILED = 18
_OUT_OF_DISK_SPACE = 14031

_AWAY = frozenset({6, 7, 64, 89, 91, 189, 10107, 11600, 11602, 13435, 13436})
"""Codes of a server that is shutting down, or is no primary any more, or could not confirm a write in time."""

OUT_OF_REACH = (AutoReconnect, WTimeoutError, TimeoutError)
"""What says that the server is away, or has no primary just now, and may be back soon."""


class UnusableDatabase(StoreError):
    """The database cannot be a store, or is of a newer version; it was left as it was."""


def explained(exc: Exception, address: Address) -> Exception:
    """Return the error that a caller understands, for one that carrying out an operation raised.

    Args:
        exc: What was raised. The store's own errors, and what is no error of the database, come back as they are.
        address: The database.
    """
    if isinstance(exc, LightningError):
        return exc
    if isinstance(exc, UnicodeEncodeError):
        return InvalidRequest(f"a text that is no valid Unicode cannot be stored: {exc}")
    if isinstance(exc, OverflowError):
        return InvalidRequest(f"a number is too large to be stored: {exc}")
    if isinstance(exc, DocumentTooLarge | BSONError):
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
    said = str(exc) or type(exc).__name__
    for end in (" (configured timeouts", ", Timeout:", ", full error:", "\n"):
        said = said.partition(end)[0]
    return said[:300]


def duplicates(exc: BulkWriteError) -> set[int]:
    """Return which of the operations met a key that was there already.

    Raises:
        BulkWriteError: The same, when it is about anything else, too.
    """
    details = exc.details or {}
    faults = details.get("writeErrors", [])
    if details.get("writeConcernErrors") or any(fault["code"] != DUPLICATE_KEY for fault in faults):
        raise exc
    return {fault["index"] for fault in faults}


def is_away(exc: BulkWriteError) -> bool:
    """Whether operations failed because the server is going away."""
    details = exc.details or {}
    faults = [*details.get("writeErrors", ()), *details.get("writeConcernErrors", ())]
    return any(fault.get("code") in _AWAY for fault in faults)


def _refused(exc: OperationFailure, address: Address) -> StoreError:
    if isinstance(exc, BulkWriteError):
        details = exc.details or {}
        faults = [*details.get("writeErrors", ()), *details.get("writeConcernErrors", ())]
        code, said = (faults[0].get("code"), str(faults[0].get("errmsg", ""))[:300]) if faults else (None, str(exc))
    else:
        code, said = exc.code, in_short(exc)
    if code == _AUTHENTICATION_FAILED:
        return AccessDenied(f"{address} refuses the name or the password in the uri")
    if code == UNAUTHORIZED:
        # The server quotes the whole command, with what was to be written.
        return AccessDenied(
            f"{address} does not allow this: {said.partition(' to execute command')[0]}; give the uri a user with the "
            "role readWrite"
        )
    if code == _OUT_OF_DISK_SPACE:
        return StoreFull(f"{address} has no room left ({said}); free space, or delete what has ended (delete_rollouts)")
    return StoreError(f"{address}: {said} (code {code})")
