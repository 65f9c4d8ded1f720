"""Who may do what: two keys that are given, and one for each attempt, which comes with its claim."""

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from lightning_core.errors import AccessDenied, ConfigError, InvalidRequest
from lightning_core.rewards import as_reported
from lightning_core.types import Span
from lightning_core.types.span import MAX_SEQUENCE_ID

_ATTEMPT_KEY = "agl-at-"
_END = b"\0"
"""Of the run's id in an attempt's key: what comes behind, as JSON, has no such byte."""


class Role(IntEnum):
    """What a key is good for; each role may do what the lower ones may."""

    ATTEMPT = 1
    """Write spans of one attempt."""
    RUNNER = 2
    """Claim rollouts, report on them, and read what that needs."""
    ALGORITHM = 3
    """Everything."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who calls."""

    role: Role
    run_id: str | None = None
    """The run that an attempt's key belongs to; None for other keys."""
    rollout_id: str | None = None
    attempt_id: str | None = None

    def require_attempt(self, rollout_id: str, attempt_id: str) -> None:
        """Check that the caller may write to this attempt.

        Raises:
            AccessDenied: When it has the key of another one.
        """
        if not self.owns(rollout_id, attempt_id):
            raise AccessDenied(
                f"this key is for attempt {self.attempt_id} of rollout {self.rollout_id}; "
                f"it cannot write to attempt {attempt_id!r} of rollout {rollout_id!r}"
            )

    def owns(self, rollout_id: str, attempt_id: str) -> bool:
        """Whether the caller may write to this attempt."""
        return self.role > Role.ATTEMPT or (rollout_id, attempt_id) == (self.rollout_id, self.attempt_id)

    def mark(self, spans: Sequence[Span]) -> Sequence[Span]:
        """Return spans that the caller sends: as reported where it has the key of an attempt, else as they are.

        Raises:
            InvalidRequest: When an attempt's key comes with a sequence id after which few are left.
        """
        if self.role > Role.ATTEMPT:
            return spans
        largest = max((span.sequence_id for span in spans), default=0)
        if largest > MAX_REPORTED_ID:
            raise InvalidRequest(
                f"sequence_id is {largest}; with an attempt's key it is at most {MAX_REPORTED_ID}, or 0 to have the "
                "store number the span"
            )
        return [as_reported(span) for span in spans]


MAX_REPORTED_ID = MAX_SEQUENCE_ID // 16
"""The largest sequence id that an attempt's key may give: the store has to have numbers for the spans after it."""


class Unauthorized(AccessDenied):
    """No key was given, or an unknown one; the answer is 401 instead of 403."""


class Keys:
    """The keys of one server.

    An attempt's key is its run, rollout, attempt and last second of validity, if there is one, with an HMAC-SHA256 of
    these under a secret of the run. It is made from the algorithm's key, so that it outlives the server.

    Args:
        key: The algorithm's; None lets everybody do everything.
        runner_key: What runners may use instead.
        attempt_seconds: How long an attempt's key is good.

    Raises:
        ConfigError: When a key cannot be one.
    """

    def __init__(self, key: str | None, *, runner_key: str | None = None, attempt_seconds: float = 86_400.0) -> None:
        for name, given in (("key", key), ("runner_key", runner_key)):
            if given is not None and (not given.isascii() or not given.isprintable() or " " in given):
                raise ConfigError(
                    f"the {name} cannot be sent: it has characters other than printable ASCII, or a space"
                )
        if runner_key is not None and key is None:
            raise ConfigError("there is a runner_key and no key; give the algorithm its own key, too")
        if runner_key is not None and runner_key == key:
            raise ConfigError(
                "runner_key and key are the same; a runner's key may do less, so it has to be another one"
            )
        self.required = key is not None
        self._known = [
            (_digest(given), Identity(role))
            for given, role in ((key, Role.ALGORITHM), (runner_key, Role.RUNNER))
            if given is not None
        ]
        self._secret = secrets.token_bytes(32) if key is None else hmac.digest(key.encode(), b"attempts", "sha256")
        self._attempt_seconds = attempt_seconds

    def identify(self, authorization: str | None, now: float) -> Identity:
        """Say who sends this header.

        Args:
            authorization: The value of the header `Authorization`.
            now: Seconds since the epoch.

        Raises:
            Unauthorized: When a key is required, and this is not a valid one.
        """
        if not self.required:
            return _EVERYBODY
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Unauthorized("this store wants a key; send it as 'Authorization: Bearer KEY'")
        token = token.strip()
        if token.startswith(_ATTEMPT_KEY):
            return self._identify_attempt(token, now)
        given, found = _digest(token), None
        for known, identity in self._known:  # all of them, always: how long it takes says nothing of the keys
            if hmac.compare_digest(given, known):
                found = identity
        if found is None:
            raise Unauthorized("this is not a key of this store")
        return found

    def mint(self, run_id: str, rollout_id: str, attempt_id: str, now: float, *, expires: bool = True) -> str | None:
        """Make the key of an attempt; None where no keys are required.

        Args:
            run_id: Whose attempt it is.
            rollout_id: Its rollout.
            attempt_id: The attempt.
            now: Seconds since the epoch.
            expires: Whether it is good for `attempt_seconds`; if not, for as long as its attempt is let do anything.
        """
        if not self.required:
            return None
        until = int(now + self._attempt_seconds) if expires else None
        run, claims = run_id.encode(), json.dumps([rollout_id, attempt_id, until], separators=(",", ":")).encode()
        return f"{_ATTEMPT_KEY}{_base64(run + _END + claims)}.{_base64(self._sign(run, claims))}"

    def _identify_attempt(self, token: str, now: float) -> Identity:
        try:
            body, signature = map(_bytes, token.removeprefix(_ATTEMPT_KEY).split("."))
        except ValueError as exc:
            raise Unauthorized("this is not a key of an attempt") from exc
        run, _, claims = body.rpartition(_END)
        # Before any of it is read: what is not signed may be made up.
        if not hmac.compare_digest(signature, self._sign(run, claims)):
            raise Unauthorized("this is not a key of this store")
        run_id = run.decode()
        rollout_id, attempt_id, until = json.loads(claims)
        if until is not None and now > until:
            raise Unauthorized(f"the key of attempt {attempt_id} has expired")
        return Identity(Role.ATTEMPT, run_id, rollout_id, attempt_id)

    def _sign(self, run: bytes, claims: bytes) -> bytes:
        run_secret = hmac.digest(self._secret, run, "sha256")
        return hmac.digest(run_secret, claims, "sha256")


_EVERYBODY = Identity(Role.ALGORITHM)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _base64(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4))
    except binascii.Error as exc:
        raise ValueError(str(exc)) from exc
