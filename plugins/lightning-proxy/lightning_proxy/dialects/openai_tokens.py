"""The engine's tokens in OpenAI's answers, as vLLM gives them."""

from typing import Any

from lightning_proxy.answer import Answer, AnswerChoice, integer, mapping, objects
from lightning_proxy.dialects.base import Added, Fields

RETURN_TOKEN_IDS = "return_token_ids"
LOGPROBS = "logprobs"
STREAM_OPTIONS = "stream_options"


def token_additions(request: Fields, *, tokens: bool, logprobs: Any) -> Fields:
    """Return what to ask for so that tokens, log-probabilities and usage are in the answer.

    Args:
        request: What the agent asked.
        tokens: Whether the backend gives token ids.
        logprobs: The value by which this API asks for log-probabilities.
    """
    wanted: Fields = {}
    if tokens:
        if request.get(RETURN_TOKEN_IDS) is not True:
            wanted[RETURN_TOKEN_IDS] = True
        asked = request.get(LOGPROBS)
        if asked is None or asked is False:  # 0 asks for those of the sampled tokens alone
            wanted[LOGPROBS] = logprobs
    if request.get("stream") is True:
        options = mapping(request.get(STREAM_OPTIONS))
        if options.get("include_usage") is not True:
            wanted[STREAM_OPTIONS] = {**options, "include_usage": True}
    return wanted


def strip_tokens(answer: Fields, added: Added) -> None:
    """Take tokens and log-probabilities out that the agent did not ask for."""
    if RETURN_TOKEN_IDS in added:
        answer.pop("prompt_token_ids", None)
    for choice in objects(answer.get("choices")):
        if RETURN_TOKEN_IDS in added:
            choice.pop("token_ids", None)
            choice.pop("prompt_token_ids", None)
        if LOGPROBS in added and choice.get("logprobs") is not None:
            choice["logprobs"] = None


def strip_usage(event: Fields, added: Added) -> bool:
    """Take the usage out of an event; False for the event that carries nothing else."""
    if STREAM_OPTIONS in added and "usage" in event:
        usage = event.pop("usage")
        return bool(event.get("choices")) or not usage
    return True


def read_usage(answer: Answer, usage: Any) -> None:
    """Take note of the numbers of tokens, by the names of any of the APIs."""
    if not isinstance(usage, dict):
        return
    for name, places in _USAGE.items():
        found = next((count for place in places if (count := integer(usage.get(place))) is not None), None)
        if found is not None:
            setattr(answer, name, found)
    details = mapping(usage.get("prompt_tokens_details") or usage.get("input_tokens_details"))
    cached = integer(details.get("cached_tokens"))
    if cached is None:
        cached = integer(usage.get("cache_read_input_tokens"))
    if cached is not None:
        answer.cached_tokens = cached


_USAGE = {
    "input_tokens": ("prompt_tokens", "input_tokens"),
    "output_tokens": ("completion_tokens", "output_tokens"),
}


class ChoiceTokens:
    """The tokens of one streamed choice, which come in pieces."""

    def __init__(self) -> None:
        self.ids: list[int] | None = None
        self.logprobs: list[Any] | None = None

    def add(self, ids: list[int] | None, logprobs: list[Any] | None) -> None:
        """Take the next piece; None where there is none."""
        if ids is not None:
            if self.ids is None:
                self.ids = []
            self.ids.extend(ids)
        if logprobs is not None:
            if self.logprobs is None:
                self.logprobs = []
            self.logprobs.extend(logprobs)

    def give(self, choice: AnswerChoice) -> None:
        """Write them down."""
        choice.token_ids, choice.logprobs = self.ids, self.logprobs
