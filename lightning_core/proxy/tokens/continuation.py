"""The exact tokens of an attempt's conversations, so that the next prompt begins with what was sampled."""

import hashlib
import json
import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

from lightning_core.proxy.answer import mapping, objects
from lightning_core.proxy.jsons import dump

Message = dict[str, Any]


class Known(NamedTuple):
    """A conversation up to and with an answer of the model."""

    messages: int
    """How many messages it has, the answer's included."""
    token_ids: "array[int]"
    """The prompt and the answer, as the engine saw and sampled them."""


class Conversations:
    """The newest conversations of the newest attempts.

    What is forgotten costs exactness, no more: the next prompt is then made of the text alone. Threads may share it.

    Args:
        max_tokens: How many tokens are remembered in all; each takes 4 bytes.
        max_per_attempt: How many conversations of one attempt: each answer makes one.
    """

    def __init__(self, *, max_tokens: int = 20_000_000, max_per_attempt: int = 64) -> None:
        self._max_tokens = max_tokens
        self._max_per_attempt = max_per_attempt
        self._attempts: OrderedDict[str, OrderedDict[bytes, Known]] = OrderedDict()
        self._tokens = 0
        self._lock = threading.Lock()

    @property
    def tokens(self) -> int:
        """How many tokens are remembered."""
        return self._tokens

    def find(self, attempt: str, setting: Any, messages: Sequence[Message]) -> Known | None:
        """Return the longest conversation that these messages go on with; None where there is none.

        Args:
            attempt: Whose conversations.
            setting: What besides the messages makes the prompt: the tools, ...
            messages: Those of the new call.
        """
        digests = _digests(setting, messages)
        with self._lock:
            known = self._attempts.get(attempt)
            if known is None:
                return None
            self._attempts.move_to_end(attempt)
            for digest in reversed(digests):
                if digest in known:
                    known.move_to_end(digest)
                    return known[digest]
        return None

    def remember(self, attempt: str, setting: Any, messages: Sequence[Message], token_ids: Sequence[int]) -> None:
        """Remember a conversation whose last message is the model's answer."""
        digest = _digests(setting, messages)[-1]
        new = Known(len(messages), array("I", token_ids))
        with self._lock:
            known = self._attempts.setdefault(attempt, OrderedDict())
            self._attempts.move_to_end(attempt)
            before = known.pop(digest, None)
            known[digest] = new
            self._tokens += len(token_ids) - (len(before.token_ids) if before is not None else 0)
            if len(known) > self._max_per_attempt:
                self._tokens -= len(known.popitem(last=False)[1].token_ids)
            while self._tokens > self._max_tokens and len(self._attempts) > 1:
                _, oldest = self._attempts.popitem(last=False)
                self._tokens -= sum(len(each.token_ids) for each in oldest.values())


def _digests(setting: Any, messages: Sequence[Message]) -> list[bytes]:
    """Return a digest of each beginning of a conversation."""
    digest = hashlib.sha256(dump(setting)).digest()
    found = []
    for message in messages:
        digest = hashlib.sha256(digest + dump(_essence(message))).digest()
        found.append(digest)
    return found


def _essence(message: Message) -> list[Any]:
    """Return what a message says, in whatever form a client sends it back."""
    calls = []
    for call in objects(message.get("tool_calls")):
        function = mapping(call.get("function"))
        calls.append([call.get("id"), function.get("name"), _arguments(function.get("arguments"))])
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text") or "") for part in content)
    return [message.get("role"), content or "", calls, message.get("tool_call_id"), message.get("name")]


def _arguments(given: Any) -> str:
    """Return a tool's arguments in one spelling: clients read their JSON, and write it anew."""
    try:
        value = json.loads(given or "{}") if isinstance(given, str | None) else given
        return json.dumps(value, sort_keys=True)
    except (ValueError, TypeError, RecursionError):
        return str(given)
