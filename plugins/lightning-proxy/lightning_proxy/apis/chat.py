"""OpenAI's APIs of messages and texts, with the tokens that vLLM adds: chat, completions and embeddings."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lightning_proxy.answer import (
    Answer,
    AnswerChoice,
    failure_of,
    input_messages,
    integer,
    integers,
    legacy_tool_calls,
    mapping,
    objects,
    text_of,
)
from lightning_proxy.apis.base import Added, Dialect, Fields, append_text, item_at, merge_usage, read_usage

CHAT = "/chat/completions"
RETURN_TOKEN_IDS = "return_token_ids"
LOGPROBS = "logprobs"
STREAM_OPTIONS = "stream_options"


class _TokensDialect(Dialect):
    """What chat and completions have in common."""

    logprobs: ClassVar[Any]
    """The value by which this API asks for log-probabilities."""

    @abstractmethod
    def read_choice(self, choice: Fields) -> AnswerChoice:
        """Read one choice of an answer, but for its tokens."""

    @abstractmethod
    def merge_choice(self, known: Fields, choice: Fields) -> None:
        """Merge the text of one choice of an event."""

    def additions(self, request: Fields, *, tokens: bool) -> Fields:
        wanted: Fields = {}
        if tokens:
            if request.get(RETURN_TOKEN_IDS) is not True:
                wanted[RETURN_TOKEN_IDS] = True
            asked = request.get(LOGPROBS)
            if asked is None or asked is False:  # 0 asks for those of the sampled tokens alone
                wanted[LOGPROBS] = self.logprobs
        if request.get("stream") is True:
            options = mapping(request.get(STREAM_OPTIONS))
            if options.get("include_usage") is not True:
                wanted[STREAM_OPTIONS] = {**options, "include_usage": True}
        return wanted

    def read(self, answer: Fields) -> Answer:
        choices = objects(answer.get("choices"))
        found = Answer(
            id=text_of(answer.get("id")),
            model=text_of(answer.get("model")),
            prompt_token_ids=_prompt(answer, choices),
            failure=failure_of(answer.get("error")),
        )
        for choice in choices:
            read = self.read_choice(choice)
            read.finish_reason = text_of(choice.get("finish_reason"))
            read.token_ids = integers(choice.get("token_ids"))
            read.logprobs = _logprobs(choice.get("logprobs"))
            found.choices.append(read)
        read_usage(found, answer.get("usage"))
        return found

    def merge(self, answer: Fields, event: Fields) -> None:
        for name in ("id", "model", "prompt_token_ids"):
            if event.get(name) and name not in answer:
                answer[name] = event[name]
        if event.get("usage"):
            merge_usage(answer, event["usage"])
        for choice in objects(event.get("choices")):
            index = choice.get("index")
            known = item_at(answer.setdefault("choices", []), index if isinstance(index, int) else 0)
            self.merge_choice(known, choice)
            for name in ("finish_reason", "prompt_token_ids"):
                if choice.get(name) is not None:
                    known[name] = choice[name]
            if (ids := integers(choice.get("token_ids"))) is not None:
                known.setdefault("token_ids", []).extend(ids)
            if (logprobs := _logprobs(choice.get("logprobs"))) is not None:  # all else of them is not read
                known.setdefault("logprobs", {"token_logprobs": []})["token_logprobs"].extend(logprobs)

    def has_answer(self, answer: Fields) -> bool:
        return bool(objects(answer.get("choices")))

    def is_garbage(self, fields: Fields) -> bool:
        choices = fields.get("choices", [])
        if choices is None:
            return not (fields.get("usage") or fields.get("error"))
        return not isinstance(choices, list) or len(objects(choices)) < len(choices)

    def strip(self, answer: Fields, added: Added) -> None:
        if RETURN_TOKEN_IDS in added:
            answer.pop("prompt_token_ids", None)
        for choice in objects(answer.get("choices")):
            if RETURN_TOKEN_IDS in added:
                choice.pop("token_ids", None)
                choice.pop("prompt_token_ids", None)
            if LOGPROBS in added and choice.get("logprobs") is not None:
                choice["logprobs"] = None

    def strip_event(self, event: Fields, added: Added) -> bool:
        self.strip(event, added)
        if STREAM_OPTIONS in added and "usage" in event:
            usage = event.pop("usage")
            return bool(event.get("choices")) or not usage
        return True

    def choices(self, request: Fields) -> int:
        return integer(request.get("n")) or 1


class ChatDialect(_TokensDialect):
    """The chat API, `/v1/chat/completions`: messages in, a message out."""

    path = CHAT
    operation = "chat"
    names: ClassVar = {"max_tokens": ("max_tokens", "max_completion_tokens")}
    logprobs = True

    def read_choice(self, choice: Fields) -> AnswerChoice:
        message = mapping(choice.get("message"))
        content = message.get("content")
        return AnswerChoice(
            content=content if content or message.get("refusal") is None else message["refusal"],
            reasoning=text_of(message.get("reasoning_content")) or text_of(message.get("reasoning")),
            tool_calls=objects(message.get("tool_calls")) or legacy_tool_calls(message.get("function_call")),
        )

    def merge_choice(self, known: Fields, choice: Fields) -> None:
        message = known.setdefault("message", {})
        for name, piece in mapping(choice.get("delta")).items():
            if isinstance(piece, str):
                append_text(message, name, piece)
            elif name == "function_call":
                _merge_call(message.setdefault(name, {}), piece)
            elif name == "tool_calls":
                for call in objects(piece):  # some engines give all parallel calls one index
                    new_id = call.get("id") if mapping(call.get("function")).get("name") else None
                    _merge_call(item_at(message.setdefault(name, []), call.get("index"), new_id), call)

    def messages(self, request: Fields) -> list[Fields]:
        return input_messages(request.get("messages"))

    def tools(self, request: Fields) -> list[Any]:
        functions = objects(request.get("functions"))  # as the API had it before tools
        return objects(request.get("tools")) or [{"type": "function", "function": each} for each in functions]


class CompletionsDialect(_TokensDialect):
    """The completions API, `/v1/completions`: a text in, its continuation out."""

    path = "/completions"
    operation = "text_completion"
    names: ClassVar[Mapping[str, Sequence[str]]] = {}
    logprobs = 1
    """Asks for the likeliest token beside the sampled one: no value asks for the latter alone that all engines take."""

    def read(self, answer: Fields) -> Answer:
        found = super().read(answer)
        prompt = len(found.prompt_token_ids or ())
        for choice in found.choices:
            ids, logprobs = choice.token_ids, choice.logprobs
            if ids is not None and logprobs is not None and len(logprobs) == prompt + len(ids):
                choice.logprobs = logprobs[prompt:]  # those of an echoed prompt come before them
        return found

    def read_choice(self, choice: Fields) -> AnswerChoice:
        return AnswerChoice(content=text_of(choice.get("text")) or "")

    def merge_choice(self, known: Fields, choice: Fields) -> None:
        if isinstance(choice.get("text"), str):
            append_text(known, "text", choice["text"])

    def messages(self, request: Fields) -> list[Fields]:
        prompt = request.get("prompt")
        texts = [prompt] if isinstance(prompt, str) else prompt if isinstance(prompt, list) else []
        return [
            {"role": "user", "parts": [{"type": "text", "content": text}]} for text in texts if isinstance(text, str)
        ]

    def choices(self, request: Fields) -> int:
        prompt, each = request.get("prompt"), super().choices(request)
        if not isinstance(prompt, list) or not prompt or isinstance(prompt[0], int):
            return each
        return each * len(prompt)


class EmbeddingsDialect(Dialect):
    """The embeddings API, `/v1/embeddings`: texts in, vectors out. Only the usage is recorded."""

    path = "/embeddings"
    operation = "embeddings"
    writes = False

    def read(self, answer: Fields) -> Answer:
        found = Answer(id=text_of(answer.get("id")), model=text_of(answer.get("model")))
        read_usage(found, answer.get("usage"))
        found.output_tokens = 0
        found.failure = failure_of(answer.get("error"))
        return found

    def has_answer(self, answer: Fields) -> bool:
        return isinstance(answer.get("data"), list)

    def merge(self, answer: Fields, event: Fields) -> None:
        """Keep nothing: this API does not stream."""


def _merge_call(known: Fields, piece: Any) -> None:
    """Merge a piece of a tool call: names and arguments come in pieces, ids and types as a whole."""
    for name, value in mapping(piece).items():
        if isinstance(value, dict):
            _merge_call(known.setdefault(name, {}), value)
        elif isinstance(value, str) and name not in ("id", "type"):
            append_text(known, name, value)
        elif value:
            known[name] = value


def _logprobs(given: Any) -> list[Any] | None:
    """Return the log-probabilities of tokens, in the form of either API."""
    fields = mapping(given)
    if isinstance(flat := fields.get("token_logprobs"), list):
        return flat
    content = fields.get("content")
    return [entry.get("logprob") for entry in objects(content)] if isinstance(content, list) else None


def _prompt(answer: Fields, choices: list[Fields]) -> list[int] | None:
    """Return the prompt's token ids where all choices are of one prompt: one record cannot hold several."""
    found = integers(answer.get("prompt_token_ids"))
    if found is not None:
        return found
    prompts = [ids for choice in choices if (ids := integers(choice.get("prompt_token_ids"))) is not None]
    return prompts[0] if prompts and all(prompt == prompts[0] for prompt in prompts) else None
