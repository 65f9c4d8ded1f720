"""The engine's token ids and log-probabilities, where a span has them. They are never made from text."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lightning_core.adapter import genai
from lightning_core.adapter.attributes import decoded, entries, nested


class TokenRecord(NamedTuple):
    """What one span says of the tokens of its call. The sequences are the span's own; do not change them."""

    prompt: Sequence[int] | None = None
    """The prompt; None when it was not recorded."""
    responses: tuple[Sequence[int] | None, ...] = ()
    """The answer, one entry a choice; None for a choice without token ids."""
    logprobs: tuple[Sequence[float] | None, ...] = ()
    """Of each token of each choice; None where they were not recorded, or are not as many as the tokens."""

    @property
    def rank(self) -> int:
        """2 with the prompt and an answer, 1 with one of them, 0 with neither."""
        return (self.prompt is not None) + any(ids is not None for ids in self.responses)


def read_tokens(attributes: Mapping[str, Any]) -> TokenRecord:
    """Read the token ids of a call.

    Only the first and the last id are looked at: a prompt may have a hundred thousand.

    Args:
        attributes: Of its span, as `dialects.attributes_of` returns them.

    Returns:
        What is recorded; an empty record when nothing is.
    """
    if genai.PROMPT_TOKEN_IDS in attributes or genai.RESPONSE_TOKEN_IDS in attributes:
        prompt = attributes.get(genai.PROMPT_TOKEN_IDS)
        responses = _per_choice(attributes.get(genai.RESPONSE_TOKEN_IDS))
        logprobs = _per_choice(attributes.get(genai.RESPONSE_LOGPROBS))
        if not logprobs and genai.LOGPROBS_CONTENT in attributes:
            logprobs = [_read_content(attributes[genai.LOGPROBS_CONTENT])]
    elif genai.OUTPUT_PROMPT_TOKEN_IDS in attributes:  # of vLLM's chat API
        answer = nested(attributes, genai.OPERATION_OUTPUT)
        prompt, responses = answer.get(genai.PROMPT_TOKEN_IDS), _per_choice(answer.get(genai.RESPONSE_TOKEN_IDS))
        choices = [choice for choice in entries(decoded(answer.get("choices"))) if isinstance(choice, Mapping)]
        responses = responses or [_ids_of_choice(choice) for choice in choices]
        found = [choice.get("logprobs") for choice in choices]
        logprobs = [_read_content(each.get("content")) if isinstance(each, Mapping) else None for each in found]
    else:
        return TokenRecord()
    ids = tuple(map(token_ids, responses))
    logprobs += [None] * (len(ids) - len(logprobs))
    fitting = tuple(_fitting(*pair) for pair in zip(logprobs, ids, strict=False))
    # A prompt is never empty, so an empty list says that no source recorded it.
    return TokenRecord(token_ids(prompt) or None, ids, fitting)


def token_ids(value: Any) -> Sequence[int] | None:
    """Return a list or tuple of integers, or None for anything else. Looks at both ends only."""
    value = decoded(value)
    if not isinstance(value, (list, tuple)):
        return None
    if value and (type(value[0]) is not int or type(value[-1]) is not int):
        return None
    return value


def _ids_of_choice(choice: Mapping[str, Any]) -> Any:
    ids = choice.get("token_ids")
    more = choice.get("provider_specific_fields")
    return more.get("token_ids") if ids is None and isinstance(more, Mapping) else ids


def _per_choice(value: Any) -> list[Any]:
    """Split what is one list, or one list a choice."""
    value = decoded(value)
    if not isinstance(value, (list, tuple)):
        return []
    if value and isinstance(value[0], (list, tuple, str)):
        return list(value)
    return [value]


def _fitting(logprobs: Any, response: Sequence[int] | None) -> Sequence[float] | None:
    if response is None or not isinstance(logprobs, (list, tuple)) or len(logprobs) != len(response):
        return None
    return logprobs if all(type(number) in (float, int) for number in logprobs) else None


def _read_content(content: Any) -> list[Any] | None:
    """Take the numbers out of OpenAI's list of objects with `logprob`."""
    content = decoded(content)
    if not isinstance(content, (list, tuple)) or not all(isinstance(entry, Mapping) for entry in content):
        return None
    return [entry.get("logprob") for entry in content]
