"""Answers as vLLM's server gives them, from tokens."""

import json
import re
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from lightning_proxy.jsons import dump
from lightning_proxy.sse import DONE

from lightning_tokens.engine import Generated

ToolParser = Callable[[str], tuple[str, list[dict[str, Any]]]]
"""Takes an answer's text; returns what is left of it, and the tool calls as OpenAI's chat API has them.

One with an attribute `start`, the text that every call begins with, promises to leave what comes before as it is, white
space at its end apart. That is then streamed while it is sampled; without it, all text comes at the end.

One that raises finds no calls: the text stays as it is.
"""


class TokenToolParser(Protocol):
    """Finds tool calls in an answer's tokens: of some models, their text has lost what marks them.

    Where tools are offered, all text comes at the end of a stream.
    """

    async def read(
        self, token_ids: Sequence[int], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[str, list[dict[str, Any]]]:
        """Return what is left of an answer's text, and the tool calls as OpenAI's chat API has them.

        One that raises finds no calls: the text stays as it is.

        Args:
            token_ids: The answer's.
            tools: Those that the agent offers.
        """
        ...


_HERMES_START = "<tool_call>"
_HERMES = re.compile(rf"{_HERMES_START}\s*(.*?)\s*</tool_call>", re.DOTALL)


def parse_hermes(text: str) -> tuple[str, list[dict[str, Any]]]:
    """Read tool calls as Hermes and Qwen write them: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

    What is not well formed stays in the text: the agent sees what the model said.
    """
    calls: list[dict[str, Any]] = []

    def take(match: "re.Match[str]") -> str:
        found = parse_json(match[1])[1]
        calls.extend(found)
        return "" if found else match[0]

    left = _HERMES.sub(take, text)
    return (left.rstrip() if calls else text), calls


def parse_json(text: str) -> tuple[str, list[dict[str, Any]]]:
    """Read a tool call that is the whole text: `{"name": ..., "arguments": {...}}`."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return text, []
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        return text, []
    arguments = given.get("arguments", {})
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    function = {"name": given["name"], "arguments": arguments}
    return "", [{"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}]


def start_of(parser: ToolParser | TokenToolParser) -> str | None:
    """Return the text that every tool call begins with; None where it is not known."""
    return _HERMES_START if parser is parse_hermes else getattr(parser, "start", None)


class TextBefore:
    """The text before tool calls, as it comes.

    Args:
        start: What a call begins with; None for anything.
    """

    def __init__(self, start: str | None) -> None:
        self._start = start or ""
        self._has_begun = not start
        self._held = ""
        self.told = 0
        """How many characters were told."""

    def feed(self, text: str) -> str:
        """Return what is certain by now to be no part of a call."""
        if self._has_begun:
            return ""
        held = self._held + text
        place = held.find(self._start)
        self._has_begun = place >= 0
        free = held[: place if self._has_begun else len(held) - _overlap(held, self._start)].rstrip()
        self._held = held[len(free) :]
        self.told += len(free)
        return free


class BeforeStop:
    """The text before the words that end an answer, as it comes: engines give the tokens of those, too."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._held = ""
        self._has_ended = False

    def feed(self, text: str, *, is_last: bool) -> str:
        """Return what is certain by now to come before all of them, and was not told yet."""
        held = self._held + text
        places = [place for word in self._words if (place := held.find(word)) >= 0]
        overlap = 0 if is_last or places else max((_overlap(held, word) for word in self._words), default=0)
        certain = "" if self._has_ended else held[: min(places, default=len(held) - overlap)]
        self._held = held[len(certain) :]
        self._has_ended = self._has_ended or bool(places)
        return certain


class Reasoning:
    """Parts an answer's text, as it comes, into what the model thinks first and what it says.

    Args:
        marks: The texts that begin and end the thinking; None for a model that does not think.
        has_begun: Whether the prompt has begun it, so that the answer does not.
    """

    def __init__(self, marks: tuple[str, str] | None, *, has_begun: bool) -> None:
        self._start, self._end = marks or ("", "")
        self._stage = "says" if marks is None else "thinks" if has_begun else "begins"
        self._held = ""

    def feed(self, text: str, *, is_last: bool) -> tuple[str, str]:
        """Return what is certain by now of the thinking, and of what is said, and was not told yet."""
        self._held += text
        if self._stage == "begins":
            head = self._held.lstrip()
            if head.startswith(self._start):
                self._stage, self._held = "thinks", head.removeprefix(self._start)
            elif is_last or not self._start.startswith(head):
                self._stage = "says"
            else:
                return "", ""
        thought = ""
        if self._stage == "thinks":
            thought, found, rest = self._held.partition(self._end)
            if not found:
                certain = len(thought) if is_last else len(thought) - _overlap(thought, self._end)
                thought, self._held = thought[:certain], thought[certain:]
                return thought, ""
            self._stage, self._held = "says", rest
        answer, self._held = self._held, ""
        return thought, answer


def _overlap(held: str, mark: str) -> int:
    """Return how many characters at the end may be the beginning of a mark."""
    lengths = range(min(len(mark) - 1, len(held)), 0, -1)
    return next((length for length in lengths if held.endswith(mark[:length])), 0)


Fields = dict[str, Any]


class Shape(ABC):
    """An answer of one API, as it grows.

    Args:
        request: What was asked.
        prompt: The prompt's tokens.
    """

    prefix: ClassVar[str]
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, request: Mapping[str, Any], prompt: list[int]) -> None:
        self.prompt = prompt
        self._request = request
        self._choices: list[Fields] = []
        self._sampled = 0
        self._head = {
            "id": f"{self.prefix}-{secrets.token_hex(16)}",
            "created": int(time.time()),
            "model": request.get("model"),
        }
        self._asks_ids = request.get("return_token_ids") is True
        logprobs = request.get("logprobs")
        self._asks_logprobs = logprobs is not None and logprobs is not False  # 0 asks, too

    @abstractmethod
    def message(self, content: str, calls: list[Fields], reasoning: str) -> Fields | None:
        """Return the message of a choice; None where the API has none."""

    @abstractmethod
    def first(self) -> bytes:
        """Return the event that begins a stream."""

    @abstractmethod
    def _choice(self, message: Fields | None, content: str) -> Fields:
        """Return what a choice says, in one piece."""

    @abstractmethod
    def _delta(self, text: str, reasoning: str, calls: list[Fields]) -> Fields:
        """Return what an event says."""

    @abstractmethod
    def _logprobs(self, generated: Generated) -> Fields:
        """Return the log-probabilities of what was sampled."""

    def add(self, generated: Generated, content: str, calls: list[Fields], reasoning: str) -> Fields | None:
        """Add a choice; return its message, where the API has messages."""
        message = self.message(content, calls, reasoning)
        self._sampled += len(generated.token_ids)
        reason = _reason(generated.finish_reason or "stop", calls)
        choice = {"index": len(self._choices), **self._choice(message, content), "finish_reason": reason}
        self._choices.append({**choice, **self._tokens(generated)})
        return message

    def complete(self) -> Fields:
        """Return the answer in one piece."""
        answer = {**self._head, "object": self.kind, "choices": self._choices, "usage": self._usage(self._sampled)}
        return {**answer, **self._ids()}

    def piece(self, generated: Generated, text: str, reasoning: str) -> bytes:
        """Return the event of the next tokens."""
        return self._event(self._delta(text, reasoning, []), **self._tokens(generated))

    def last(self, text: str, calls: list[Fields], reason: str, sampled: int) -> list[bytes]:
        """Return the events that end a stream."""
        events = [self._event(self._delta(text, "", []))] if text else []
        events += [self._event(self._delta("", "", calls))] if calls else []
        events.append(self._event(self._delta("", "", []), finish_reason=_reason(reason, calls)))
        options = self._request.get("stream_options")
        if isinstance(options, Mapping) and options.get("include_usage") is True:
            events.append(self._chunk([], usage=self._usage(sampled)))
        return [*events, b"data: " + DONE + b"\n\n"]

    def _ids(self) -> Fields:
        return {"prompt_token_ids": self.prompt} if self._asks_ids else {}

    def _tokens(self, generated: Generated) -> Fields:
        has_logprobs = self._asks_logprobs and generated.logprobs is not None
        fields: Fields = {"logprobs": self._logprobs(generated) if has_logprobs else None}
        if self._asks_ids:
            fields["token_ids"] = list(generated.token_ids)
        return fields

    def _usage(self, sampled: int) -> Fields:
        prompt = len(self.prompt)
        return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}

    def _event(self, delta: Fields, **more: Any) -> bytes:
        return self._chunk([{"index": 0, **delta, "finish_reason": None, **more}])

    def _chunk(self, choices: list[Fields], **more: Any) -> bytes:
        return b"data: " + dump({**self._head, "object": self.chunk_kind, "choices": choices, **more}) + b"\n\n"


class Chat(Shape):
    """OpenAI's chat API."""

    prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def message(self, content: str, calls: list[Fields], reasoning: str) -> Fields | None:
        thought = {"reasoning_content": reasoning} if reasoning else {}
        if calls:
            return {"role": "assistant", **thought, "content": content or None, "tool_calls": calls}
        return {"role": "assistant", **thought, "content": content}

    def first(self) -> bytes:
        begun = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return self._chunk([begun], **self._ids())

    def _choice(self, message: Fields | None, content: str) -> Fields:
        return {"message": message}

    def _delta(self, text: str, reasoning: str, calls: list[Fields]) -> Fields:
        delta: Fields = {"reasoning_content": reasoning} if reasoning else {}
        delta |= {"content": text} if text else {}
        delta |= {"tool_calls": [{"index": index, **call} for index, call in enumerate(calls)]} if calls else {}
        return {"delta": delta}

    def _logprobs(self, generated: Generated) -> Fields:
        pairs = zip(generated.token_ids, generated.logprobs or (), strict=False)
        return {"content": [{"token": f"token_id:{token}", "logprob": logprob} for token, logprob in pairs]}


class Completion(Shape):
    """OpenAI's completions API."""

    prefix = "cmpl"
    kind = chunk_kind = "text_completion"

    def message(self, content: str, calls: list[Fields], reasoning: str) -> Fields | None:
        return None

    def first(self) -> bytes:
        return self._event(self._delta("", "", []), **self._ids())

    def _choice(self, message: Fields | None, content: str) -> Fields:
        return {"text": content}

    def _delta(self, text: str, reasoning: str, calls: list[Fields]) -> Fields:
        return {"text": text}

    def _logprobs(self, generated: Generated) -> Fields:
        return {
            "tokens": [f"token_id:{token}" for token in generated.token_ids],
            "token_logprobs": list(generated.logprobs or ()),
        }


def _reason(reason: str, calls: Sequence[Any]) -> str:
    return "tool_calls" if calls and reason == "stop" else reason
