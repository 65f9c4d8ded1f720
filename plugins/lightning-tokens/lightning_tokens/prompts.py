"""From a conversation to the prompt's tokens: those that were sampled before, and the template's for the rest."""

import hashlib
import json
import threading
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

from lightning_proxy.answer import mapping, objects
from lightning_proxy.jsons import dump
from lightning_proxy.request import Refused

from lightning_tokens.engine import Tokenizer

Message = dict[str, Any]

_THINKS = ("<think>", "</think>")
"""Those of Qwen3, DeepSeek-R1, GLM and most others, as plain text; special tokens are not in an answer's text."""


class Setting(TypedDict):
    """What besides the messages makes a prompt."""

    tools: Any
    """Those that the agent offers; None for none."""
    options: dict[str, Any]
    """Of the chat template, besides those of the model."""


class Prefix(NamedTuple):
    """A conversation up to and with an answer of the model."""

    messages: int
    """How many messages it has, the answer's included."""
    token_ids: "array[int]"
    """The prompt and the answer, as the engine saw and sampled them."""


class _Known(NamedTuple):
    messages: int
    length: int
    longest: "array[int]"
    """The tokens of the longest conversation that goes on with this one, whose first `length` are its own."""


class Conversations:
    """The newest conversations of the newest attempts.

    What is forgotten costs exactness, no more: the next prompt is then made of the text alone. Threads may share it.

    Args:
        max_tokens: How many tokens are remembered in all; each takes 4 bytes. What several turns share counts once.
        max_per_attempt: How many conversations of one attempt: each answer makes one.
    """

    def __init__(self, *, max_tokens: int = 20_000_000, max_per_attempt: int = 64) -> None:
        self._max_tokens = max_tokens
        self._max_per_attempt = max_per_attempt
        self._attempts: OrderedDict[str, OrderedDict[bytes, _Known]] = OrderedDict()
        self._tokens = 0
        self._lock = threading.Lock()

    @property
    def tokens(self) -> int:
        """How many tokens are remembered."""
        return self._tokens

    def find(self, attempt: str, setting: Any, messages: Sequence[Message]) -> Prefix | None:
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
                    conversation = known[digest]
                    return Prefix(conversation.messages, conversation.longest[: conversation.length])
        return None

    def remember(self, attempt: str, setting: Any, messages: Sequence[Message], token_ids: Sequence[int]) -> None:
        """Remember a conversation whose last message is the model's answer."""
        digests, new = _digests(setting, messages), array("I", token_ids)
        with self._lock:
            known = self._attempts.setdefault(attempt, OrderedDict())
            self._attempts.move_to_end(attempt)
            self._tokens -= _size(known)
            before = [known[digest].longest for digest in digests[:-1] if digest in known]
            continued = {id(tokens) for tokens in before if new[: len(tokens)] == tokens}
            for digest, each in known.items():
                if id(each.longest) in continued:
                    known[digest] = each._replace(longest=new)
            known[digests[-1]] = _Known(len(messages), len(new), new)
            known.move_to_end(digests[-1])
            if len(known) > self._max_per_attempt:
                known.popitem(last=False)
            self._tokens += _size(known)
            while self._tokens > self._max_tokens and len(self._attempts) > 1:
                _, oldest = self._attempts.popitem(last=False)
                self._tokens -= _size(oldest)


def _size(known: Mapping[bytes, _Known]) -> int:
    """Return how many tokens the conversations of an attempt have, each once."""
    return sum({id(each.longest): len(each.longest) for each in known.values()}.values())


def _digests(setting: Any, messages: Sequence[Message]) -> list[bytes]:
    """Return a digest of each beginning of a conversation."""
    digest = hashlib.sha256(dump(setting)).digest()
    digests = []
    for message in messages:
        digest = hashlib.sha256(digest + dump(_essence(message))).digest()
        digests.append(digest)
    return digests


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
        value = given if isinstance(given, str | None) else json.dumps(given)
        return json.dumps(json.loads(value or "{}", parse_float=_number), sort_keys=True)
    except (ValueError, TypeError, RecursionError):
        return str(given)


def _number(written: str) -> float:
    """Read a number as JavaScript's clients do, which write 1.0 as 1."""
    number = float(written)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


_MARK = "\u2063answer\u2063of\u2063the\u2063model\u2063"
"""Stands for the model's own answer while the template is applied. Invisible separators, which no text has."""


class Prompts:
    """Makes prompts.

    Args:
        tokenizer: The model's.
        template_options: Passed on to its chat template.
        conversations: What was sampled before.
    """

    def __init__(self, tokenizer: Tokenizer, template_options: Mapping[str, Any], conversations: Conversations) -> None:
        self._tokenizer = tokenizer
        self._template_options = dict(template_options)
        self._conversations = conversations

    def make(self, attempt: str | None, messages: Sequence[Message], setting: Setting) -> list[int]:
        """Return the prompt of a conversation.

        Where it goes on with one that the model took part in, it begins with exactly those tokens.

        Args:
            attempt: Whose conversation.
            messages: What was said.
            setting: What else makes the prompt.

        Raises:
            Refused: When the model's template does not take it.
        """
        if attempt is not None:
            continued = self._continue(attempt, messages, setting)
            if continued is not None:
                return continued
        return self._encode(self._render(messages, setting))

    def remember(
        self,
        attempt: str,
        messages: Sequence[Message],
        setting: Setting,
        answer: Message,
        prompt: Sequence[int],
        sampled: Sequence[int],
    ) -> None:
        """Remember what the model said, for the prompt that goes on with it."""
        self._conversations.remember(attempt, setting, [*messages, answer], [*prompt, *sampled])

    def _continue(self, attempt: str, messages: Sequence[Message], setting: Setting) -> list[int] | None:
        known = self._conversations.find(attempt, setting, messages)
        if known is None:
            return None
        place, end = known.messages - 1, self._end_of(known.token_ids)
        for way in (self._after_calls, self._after_mark):
            try:
                rest = way(messages, place, setting, end)
            except Refused:  # of a part, or without the answer's text; all of it may be taken
                continue
            if rest is not None:
                return [*known.token_ids, *self._encode(rest)]
        return None

    def _end_of(self, token_ids: Sequence[int]) -> str:
        """Return what ended an answer, where that was sampled, too: the template writes it again."""
        last = list(token_ids[-1:])
        is_special = not self._tokenizer.decode(last, skip_special_tokens=True)
        return self._tokenizer.decode(last, skip_special_tokens=False) if is_special else ""

    def _after_calls(self, messages: Sequence[Message], place: int, setting: Setting, end: str) -> str | None:
        """Return what follows an answer that calls tools: some templates take a tool's result behind its call only."""
        if not end or not messages[place].get("tool_calls"):
            return None
        beginning = self._render(messages[: place + 1], setting, asks=False)
        whole = self._render(messages, setting)
        _, found, after = beginning.rpartition(end)
        if not found or after.strip() or not whole.startswith(beginning):
            return None
        return after + whole[len(beginning) :]

    def _after_mark(self, messages: Sequence[Message], place: int, setting: Setting, end: str) -> str | None:
        """Return what follows an answer, in the place of which a mark stands."""
        marked = [*messages[:place], {"role": "assistant", "content": _MARK}, *messages[place + 1 :]]
        pieces = self._render(marked, setting).split(_MARK)
        if len(pieces) != 2:  # a template that leaves out or repeats earlier answers
            return None
        return pieces[1].removeprefix(end)

    def _render(self, messages: Sequence[Message], setting: Setting, *, asks: bool = True) -> str:
        """Return a conversation's text; `asks` for one that the model is to go on with."""
        conversation = [_for_template(message) for message in messages]
        try:
            text = self._tokenizer.apply_chat_template(
                conversation,
                tools=setting["tools"],
                add_generation_prompt=asks,
                tokenize=False,
                **{**self._template_options, **setting["options"]},
            )
        except Exception as exc:  # a template may raise what it likes, and refuses conversations that way
            raise Refused(400, "invalid_request", f"the model's chat template refuses the messages: {exc}") from exc
        return str(text)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def _for_template(message: Message) -> Message:
    """Return a message as templates want it: its content is a text, arguments of tools are objects.

    Raises:
        Refused: When its content is more than text.
    """
    fields = dict(message)
    content = message.get("content")
    if isinstance(content, list):
        if not all(isinstance(part, dict) and part.get("type") == "text" for part in content):
            raise Refused(400, "invalid_request", "this model takes text only; the messages have another content part")
        fields["content"] = "".join(str(part.get("text") or "") for part in content)
    elif content is None:
        fields["content"] = ""
    calls = objects(fields.pop("tool_calls", None))  # templates ask whether they are there, and clients say null
    if calls:
        fields["tool_calls"] = [_with_arguments(call) for call in calls]
    return fields


def _with_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = dict(mapping(call.get("function")))
    try:
        function["arguments"] = json.loads(function.get("arguments") or "{}")
    except (ValueError, TypeError, RecursionError):
        return call
    return {**call, "function": function}


_INCOMPLETE = "\ufffd"


class TextStream:
    """Turns tokens into text, each piece as soon as it is certain.

    A character may be of several tokens, and some tokenizers write a space only between tokens; so a few tokens before
    the new ones are decoded with them.

    Args:
        tokenizer: The model's.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start = 0
        self._end = 0

    def feed(self, token_ids: Sequence[int], *, is_last: bool) -> str:
        """Return the text that is certain by now, and was not told yet."""
        self._ids.extend(token_ids)
        before = self._decode(self._start, self._end)
        now = self._decode(self._start, len(self._ids))
        if not is_last and now.endswith(_INCOMPLETE):
            return ""
        self._start, self._end = self._end, len(self._ids)
        return now[len(before) :]

    def _decode(self, start: int, end: int) -> str:
        return self._tokenizer.decode(self._ids[start:end], skip_special_tokens=True)


def reasoning_marks(tokenizer: Any) -> tuple[str, str] | None:
    """Return what begins and ends the thinking of an answer, where the model's chat template has them."""
    template = str(getattr(tokenizer, "chat_template", None) or "")
    is_there = all(mark in template for mark in _THINKS) and not set(_THINKS) & set(tokenizer.all_special_tokens)
    return _THINKS if is_there else None
