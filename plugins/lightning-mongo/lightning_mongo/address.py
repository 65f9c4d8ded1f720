"""Where the database is, checked before anybody connects, and shown to people without a password."""

import re
from dataclasses import dataclass, field

from pymongo.errors import PyMongoError
from pymongo.uri_parser import parse_uri

from lightning_core.errors import InvalidRequest

_SCHEME = re.compile(r"mongodb(\+srv)?://")
_FORM = (
    "it is like mongodb://user:password@host:27017/?replicaSet=rs0, where one of : / ? # [ ] @ in a name or a password "
    "is percent-encoded"
)


@dataclass(frozen=True, slots=True)
class Address:
    """An address of MongoDB.

    Raises:
        InvalidRequest: When it is none. What stands before an `@`, or may be meant to, is never shown.
    """

    uri: str = field(repr=False)
    """With the password, if there is one."""

    def __post_init__(self) -> None:
        _require_text(self.uri)
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
            raise InvalidRequest(f"the uri is no address of a MongoDB{why}; {_FORM}") from None

    def __str__(self) -> str:
        """Return the scheme and the hosts."""
        scheme, _, rest = self.uri.partition("://")
        return f"{scheme}://{re.split('[/?]', rest.rpartition('@')[2], maxsplit=1)[0]}"


def _require_text(uri: object) -> None:
    """Check that this is a text and not, say, a client.

    Raises:
        InvalidRequest: Says what to do instead.
    """
    if isinstance(uri, str):
        return
    library = type(uri).__module__.partition(".")[0]
    if library == "motor":
        raise InvalidRequest(
            f"got a client of motor ({type(uri).__name__}), which is past its end of life; this store makes its own of "
            "pymongo: give the address, MongoLightningStore(uri='mongodb://...'), and what else the client was made "
            "with as client_options={...}"
        )
    if library == "pymongo":
        raise InvalidRequest(
            f"got a client of pymongo ({type(uri).__name__}), which belongs to one event loop or thread; this store "
            "makes its own: give the address, MongoLightningStore(uri='mongodb://...'), and what else the client was "
            "made with as client_options={...}"
        )
    raise InvalidRequest(f"the uri of a MongoDB is a text; got {type(uri).__name__}")
