"""One question to a model."""

import re
from typing import Any, NamedTuple

from openai import AsyncOpenAI

from lightning_core.errors import AlgorithmError

_USER = re.compile(r"(?<=\w://)[^\s/]+@")
"""The user and the password in a URL."""


class ModelFailed(AlgorithmError):
    """A model gave no answer that can be used."""


def without_key(text: str, key: str) -> str:
    """Take a key out of a text that may be shown. What is short is a word, such as `none`, and no secret."""
    return text.replace(key, "***") if len(key) >= 8 else text


class Answer(NamedTuple):
    """What a model said."""

    text: str
    input_tokens: int = 0
    """Of the request, as the endpoint counts; 0 where it does not say."""
    output_tokens: int = 0


async def ask(client: AsyncOpenAI, text: str, *, model: str, temperature: float, seed: int) -> Answer:
    """Send one user message, and return the whole of the answer.

    How often and how long is tried is up to the client.

    Raises:
        ModelFailed: When there is no answer, or it is empty, cut off, or no chat completion; says which.
    """
    try:
        completion = await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": text}], temperature=temperature, seed=seed
        )
    except Exception as exc:  # a client also raises what reading half a reply raises, or its own transport
        origin = f" ({exc.__cause__})" if exc.__cause__ is not None else ""
        said = f"{exc}{origin}"
        key = getattr(client, "api_key", None)
        shown = _USER.sub("***@", without_key(said, key) if isinstance(key, str) else said)
        failure = ModelFailed(f"model {model!r} gave no answer: {type(exc).__name__}: {shown}")
        # A provider may repeat the key that it was sent: then its own words must not get into a traceback either.
        raise failure from (exc if shown == said else None)
    # The client lets through what is no completion at all, such as the page of a web server: its types are hopes.
    choices = getattr(completion, "choices", None)
    choice = choices[0] if isinstance(choices, list | tuple) and choices else None
    message = getattr(choice, "message", None)
    if message is None:
        base_url = _USER.sub("***@", str(getattr(client, "base_url", "the endpoint")))
        raise ModelFailed(
            f"model {model!r} gave no answer: {base_url} did not reply with a chat completion; "
            "is that the base URL of an OpenAI-compatible endpoint, such as https://.../v1?"
        )
    answer, finish_reason = getattr(message, "content", None), getattr(choice, "finish_reason", None)
    if finish_reason == "length":
        raise ModelFailed(f"model {model!r} was cut off at its limit of tokens")
    if answer is not None and not isinstance(answer, str):
        raise ModelFailed(f"model {model!r} gave an answer that is a {type(answer).__name__}, and no text")
    if not answer or answer.isspace():
        raise ModelFailed(f"model {model!r} gave an empty answer (finish_reason {finish_reason!r})")
    usage = getattr(completion, "usage", None)
    return Answer(answer, _count(usage, "prompt_tokens"), _count(usage, "completion_tokens"))


def _count(usage: Any, name: str) -> int:
    number = getattr(usage, name, None)
    return number if type(number) is int and number > 0 else 0
