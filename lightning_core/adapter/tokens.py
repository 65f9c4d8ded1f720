"""The engine's token ids and log-probabilities, where a span has them. They are never made from text."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lightning_core.adapter import genai
from lightning_core.adapter.attributes import decoded, entries, nested
from lightning_core.types import Span


class TokenRecord(NamedTuple):
    """What one span says of the tokens of its call. The sequences are the span's own; do not change them."""

    prompt: Sequence[int] | None
    """The prompt; None when it was not recorded."""
    responses: tuple[Sequence[int] | None, ...]
    """The answer, one entry a choice; None for a choice without token ids."""
    logprobs: tuple[Sequence[float] | None, ...]
    """Of each token of each choice; None where they were not recorded, or are not as many as the tokens."""

    @property
    def is_complete(self) -> bool:
        """Whether the prompt and at least one choice were recorded."""
        return self.prompt is not None and any(ids is not None for ids in self.responses)


NO_TOKENS = TokenRecord(None, (), ())
"""The record of a span without tokens."""


def read_tokens(span: Span) -> TokenRecord:
    """Read the token ids of a span's call.

    Only the first and the last id are looked at: a prompt may have a hundred thousand.

    Returns:
        What is recorded; `NO_TOKENS` when nothing is.
    """
    attributes = span.attributes
    if genai.PROMPT_TOKEN_IDS in attributes or genai.RESPONSE_TOKEN_IDS in attributes:
        return _read_own(attributes)
    if span.name == genai.LITELLM_RAW_SPAN:
        fields = raw_fields(attributes)
        return _answered({**fields, "choices": decoded(fields.get("choices"))})
    if genai.OUTPUT_PROMPT_TOKEN_IDS in attributes:
        return _answered(nested(attributes, genai.OPERATION_OUTPUT))
    return NO_TOKENS


def raw_fields(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the provider's fields of LiteLLM's raw span: `llm.hosted_vllm.id` is `id`."""
    fields: dict[str, Any] = {}
    for name, value in attributes.items():
        if name.startswith(genai.LITELLM_RAW_PREFIX) and name.count(".") > 1:
            fields[name.split(".", 2)[2]] = value
    return fields


def token_ids(value: Any) -> Sequence[int] | None:
    """Return a list or tuple of integers, or None for anything else. Looks at both ends only."""
    if isinstance(value, str):
        value = decoded(value)
    if not isinstance(value, (list, tuple)):
        return None
    if value and (type(value[0]) is not int or type(value[-1]) is not int):
        return None
    return value


def _read_own(attributes: Mapping[str, Any]) -> TokenRecord:
    responses = _per_choice(attributes.get(genai.RESPONSE_TOKEN_IDS))
    logprobs: list[Any] = _per_choice(attributes.get(genai.RESPONSE_LOGPROBS))
    if not logprobs and genai.LOGPROBS_CONTENT in attributes:
        logprobs = [_read_content(decoded(attributes[genai.LOGPROBS_CONTENT]))]
    return _record(attributes.get(genai.PROMPT_TOKEN_IDS), responses, logprobs)


def _answered(answer: Any) -> TokenRecord:
    """Read an answer of vLLM's chat API."""
    if not isinstance(answer, Mapping):
        return NO_TOKENS
    choices = [choice for choice in entries(answer.get("choices")) if isinstance(choice, Mapping)]
    responses = _per_choice(answer.get(genai.RESPONSE_TOKEN_IDS))
    if not responses:
        responses = [_ids_of_choice(choice) for choice in choices]
    logprobs = []
    for choice in choices:
        found = choice.get("logprobs")
        logprobs.append(_read_content(found.get("content")) if isinstance(found, Mapping) else None)
    return _record(answer.get(genai.PROMPT_TOKEN_IDS), responses, logprobs)


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


def _record(prompt: Any, responses: Sequence[Any], logprobs: Sequence[Any]) -> TokenRecord:
    ids = tuple(token_ids(response) for response in responses)
    paired = tuple(
        _fitting(logprobs[index], response) if index < len(logprobs) and response is not None else None
        for index, response in enumerate(ids)
    )
    # A prompt is never empty, so an empty list says that no source recorded it.
    return TokenRecord(token_ids(prompt) or None, ids, paired)


def _fitting(logprobs: Any, response: Sequence[int]) -> Sequence[float] | None:
    if not isinstance(logprobs, (list, tuple)) or len(logprobs) != len(response):
        return None
    return logprobs if all(type(number) in (float, int) for number in logprobs) else None


def _read_content(content: Any) -> list[Any] | None:
    """Take the numbers out of OpenAI's list of objects with `logprob`."""
    if not isinstance(content, (list, tuple)) or not all(isinstance(entry, Mapping) for entry in content):
        return None
    return [entry.get("logprob") for entry in content]
