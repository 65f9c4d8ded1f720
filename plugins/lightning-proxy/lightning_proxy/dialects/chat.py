"""OpenAI's chat API: `/v1/chat/completions`."""

from typing import Any

from lightning_proxy import parts
from lightning_proxy.answer import Answer, AnswerChoice, failure_of, integer, integers, mapping, objects, text_of
from lightning_proxy.dialects.base import Added, Assembler, Dialect, Fields
from lightning_proxy.dialects.openai_tokens import (
    ChoiceTokens,
    read_usage,
    strip_tokens,
    strip_usage,
    token_additions,
)
from lightning_proxy.sse import DONE, ServerEvent


class ChatDialect(Dialect):
    """Messages in, a message out."""

    operation = "chat"

    def additions(self, request: Fields, *, tokens: bool) -> Fields:
        return token_additions(request, tokens=tokens, logprobs=True)

    def read(self, answer: Fields) -> Answer:
        found = Answer(
            id=text_of(answer.get("id")),
            model=text_of(answer.get("model")),
            choices=[_choice(choice) for choice in objects(answer.get("choices"))],
            prompt_token_ids=integers(answer.get("prompt_token_ids")),
            failure=failure_of(answer.get("error")),
        )
        read_usage(found, answer.get("usage"))
        return found

    def assembler(self) -> Assembler:
        return ChatAssembler()

    def strip(self, answer: Fields, added: Added) -> None:
        strip_tokens(answer, added)

    def strip_event(self, event: Fields, added: Added) -> bool:
        strip_tokens(event, added)
        return strip_usage(event, added)

    def messages(self, request: Fields) -> list[Fields]:
        return parts.of_chat_messages(request.get("messages"))

    def tools(self, request: Fields) -> list[Any]:
        functions = objects(request.get("functions"))  # as the API had it before tools
        return objects(request.get("tools")) or [{"type": "function", "function": each} for each in functions]

    def choices(self, request: Fields) -> int:
        return integer(request.get("n")) or 1


def _choice(choice: Fields) -> AnswerChoice:
    message = mapping(choice.get("message"))
    return AnswerChoice(
        content=message.get("content") if message.get("content") is not None else message.get("refusal"),
        reasoning=text_of(message.get("reasoning_content")) or text_of(message.get("reasoning")),
        tool_calls=objects(message.get("tool_calls")) or parts.of_function_call(message.get("function_call")),
        finish_reason=text_of(choice.get("finish_reason")),
        token_ids=integers(choice.get("token_ids")),
        logprobs=_logprobs(choice.get("logprobs")),
    )


def _logprobs(given: Any) -> list[Any] | None:
    content = given.get("content") if isinstance(given, dict) else None
    if not isinstance(content, list):
        return None
    try:
        return [entry["logprob"] for entry in content]
    except (KeyError, TypeError):  # from an engine of its own ways
        return [entry.get("logprob") for entry in objects(content)]


class _StreamedChoice:
    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, dict[str, Any]] = {}
        self.arguments: dict[int, list[str]] = {}
        self.tokens = ChoiceTokens()
        self.finish_reason: str | None = None
        self._texts = {
            "content": self.text,
            "refusal": self.text,
            "reasoning_content": self.reasoning,
            "reasoning": self.reasoning,
        }

    def feed(self, choice: Fields) -> None:
        delta = mapping(choice.get("delta"))
        for name, piece in delta.items():
            if isinstance(piece, str) and (pieces := self._texts.get(name)) is not None:
                pieces.append(piece)
        if delta.get("tool_calls"):
            for call in objects(delta["tool_calls"]):
                self._feed_call(call)
        elif delta.get("function_call"):
            self._feed_call({"index": 0, "function": delta["function_call"]})
        self.tokens.add(integers(choice.get("token_ids")), _logprobs(choice.get("logprobs")))
        self.finish_reason = text_of(choice.get("finish_reason")) or self.finish_reason

    def _feed_call(self, call: Fields) -> None:
        index = call.get("index")
        place = index if isinstance(index, int) else len(self.calls)
        known = self.calls.setdefault(place, {"id": None, "type": "function", "function": {"name": ""}})
        called = mapping(call.get("function")) or mapping(call.get("custom"))
        known["id"] = call.get("id") or known["id"]
        known["function"]["name"] += text_of(called.get("name")) or ""
        piece = text_of(called.get("arguments")) or text_of(called.get("input")) or ""
        self.arguments.setdefault(place, []).append(piece)

    def whole(self) -> AnswerChoice:
        for place, pieces in self.arguments.items():
            self.calls[place]["function"]["arguments"] = "".join(pieces)
        found = AnswerChoice(
            content="".join(self.text) if self.text else None,
            reasoning="".join(self.reasoning) or None,
            tool_calls=[self.calls[place] for place in sorted(self.calls)],
            finish_reason=self.finish_reason,
        )
        self.tokens.give(found)
        return found


class ChatAssembler(Assembler):
    """Makes the answer of the pieces of a streamed one."""

    def __init__(self) -> None:
        super().__init__()
        self._choices: dict[int, _StreamedChoice] = {}

    def feed(self, event: ServerEvent, fields: Fields | None) -> None:
        if fields is None:
            self.is_complete = self.is_complete or event.data == DONE
            return
        answer = self.answer
        answer.id = answer.id or text_of(fields.get("id"))
        answer.model = answer.model or text_of(fields.get("model"))
        if error := fields.get("error"):
            answer.failure = failure_of(error)
        if answer.prompt_token_ids is None:
            answer.prompt_token_ids = integers(fields.get("prompt_token_ids"))
        for choice in objects(fields.get("choices")):
            index = choice.get("index")
            place = index if isinstance(index, int) else 0
            self._feed_choice(place, choice)
        read_usage(answer, fields.get("usage"))

    def finish(self) -> Answer:
        self.answer.choices = [self._choices[place].whole() for place in sorted(self._choices)]
        finished = bool(self._choices) and all(choice.finish_reason for choice in self._choices.values())
        self.is_complete = self.is_complete or finished
        return self.answer

    def _feed_choice(self, place: int, choice: Fields) -> None:
        known = self._choices.get(place)
        if known is None:
            known = self._choices[place] = _StreamedChoice()
        known.feed(choice)
