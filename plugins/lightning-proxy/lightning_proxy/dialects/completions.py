"""OpenAI's completions API: `/v1/completions`."""

from typing import Any

from lightning_proxy.answer import Answer, AnswerChoice, failure_of, integer, integers, objects, text_of
from lightning_proxy.dialects.base import Added, Assembler, Dialect, Fields
from lightning_proxy.dialects.openai_tokens import (
    ChoiceTokens,
    read_usage,
    strip_tokens,
    strip_usage,
    token_additions,
)
from lightning_proxy.sse import DONE, ServerEvent


class EmbeddingsDialect(Dialect):
    """Texts in, vectors out. What is recorded is the usage: nothing is learned from a vector."""

    operation = "embeddings"

    def read(self, answer: Fields) -> Answer:
        found = Answer(id=text_of(answer.get("id")), model=text_of(answer.get("model")))
        read_usage(found, answer.get("usage"))
        found.output_tokens = 0
        found.failure = failure_of(answer.get("error"))
        return found

    def assembler(self) -> Assembler:
        return _NeverStreamed()


class _NeverStreamed(Assembler):
    def feed(self, event: ServerEvent, fields: Fields | None) -> None:
        """Keep nothing: this API does not stream."""


class CompletionsDialect(Dialect):
    """A text in, its continuation out."""

    operation = "text_completion"

    def additions(self, request: Fields, *, tokens: bool) -> Fields:
        # 1 asks for the likeliest token beside the one that was sampled; there is no way to ask for the latter alone
        # that all engines take.
        return token_additions(request, tokens=tokens, logprobs=1)

    def read(self, answer: Fields) -> Answer:
        choices = objects(answer.get("choices"))
        found = Answer(
            id=text_of(answer.get("id")),
            model=text_of(answer.get("model")),
            choices=[
                AnswerChoice(
                    content=text_of(choice.get("text")) or "",
                    finish_reason=text_of(choice.get("finish_reason")),
                    token_ids=integers(choice.get("token_ids")),
                    logprobs=_logprobs(choice.get("logprobs")),
                )
                for choice in choices
            ],
            prompt_token_ids=_one_prompt(answer, choices),
            failure=failure_of(answer.get("error")),
        )
        _leave_out_echo(found)
        read_usage(found, answer.get("usage"))
        return found

    def assembler(self) -> Assembler:
        return CompletionsAssembler()

    def strip(self, answer: Fields, added: Added) -> None:
        strip_tokens(answer, added)

    def strip_event(self, event: Fields, added: Added) -> bool:
        strip_tokens(event, added)
        return strip_usage(event, added)

    def messages(self, request: Fields) -> list[Fields]:
        prompt = request.get("prompt")
        texts = [prompt] if isinstance(prompt, str) else prompt if isinstance(prompt, list) else []
        return [
            {"role": "user", "parts": [{"type": "text", "content": text}]} for text in texts if isinstance(text, str)
        ]

    def choices(self, request: Fields) -> int:
        prompt, each = request.get("prompt"), integer(request.get("n")) or 1
        if not isinstance(prompt, list) or not prompt or isinstance(prompt[0], int):
            return each
        return each * len(prompt)


def _logprobs(given: Any) -> list[Any] | None:
    found = given.get("token_logprobs") if isinstance(given, dict) else None
    return found if isinstance(found, list) else None


def _leave_out_echo(answer: Answer) -> None:
    """Leave out the log-probabilities of the prompt, which come before those of the answer where it is echoed."""
    prompt = len(answer.prompt_token_ids or ())
    for choice in answer.choices:
        ids, logprobs = choice.token_ids, choice.logprobs
        if ids is not None and logprobs is not None and len(logprobs) == prompt + len(ids):
            choice.logprobs = logprobs[prompt:]


def _one_prompt(answer: Fields, choices: list[Fields]) -> list[int] | None:
    """Return the prompt's token ids where all choices are of one prompt: one record cannot hold several."""
    found = integers(answer.get("prompt_token_ids"))
    if found is not None:
        return found
    prompts = [integers(choice.get("prompt_token_ids")) for choice in choices]
    return prompts[0] if prompts and all(prompt == prompts[0] for prompt in prompts) else None


class CompletionsAssembler(Assembler):
    """Makes the answer of the pieces of a streamed one."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: dict[int, list[str]] = {}
        self._tokens: dict[int, ChoiceTokens] = {}
        self._reasons: dict[int, str | None] = {}
        self._prompts: dict[int, list[int]] = {}

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
            self._feed_choice(index if isinstance(index, int) else 0, choice)
        read_usage(answer, fields.get("usage"))

    def _feed_choice(self, place: int, choice: Fields) -> None:
        if place not in self._texts:
            self._texts[place], self._tokens[place], self._reasons[place] = [], ChoiceTokens(), None
        self._texts[place].append(text_of(choice.get("text")) or "")
        self._tokens[place].add(integers(choice.get("token_ids")), _logprobs(choice.get("logprobs")))
        self._reasons[place] = text_of(choice.get("finish_reason")) or self._reasons[place]
        prompt = integers(choice.get("prompt_token_ids"))
        if prompt is not None:
            self._prompts[place] = prompt

    def finish(self) -> Answer:
        self.answer.choices = []
        for place in sorted(self._texts):
            choice = AnswerChoice(content="".join(self._texts[place]), finish_reason=self._reasons[place])
            self._tokens[place].give(choice)
            self.answer.choices.append(choice)
        prompts = list(self._prompts.values())
        if self.answer.prompt_token_ids is None and prompts and all(prompt == prompts[0] for prompt in prompts):
            self.answer.prompt_token_ids = prompts[0]
        _leave_out_echo(self.answer)
        self.is_complete = self.is_complete or (bool(self._reasons) and all(self._reasons.values()))
        return self.answer
