"""One question to a model."""

from openai import AsyncOpenAI, OpenAIError

from lightning_core.errors import AlgorithmError


class ModelFailed(AlgorithmError):
    """A model gave no answer that can be used."""


def without_key(text: str, key: str) -> str:
    """Take a key out of a text that may be shown. What is short is a word, such as `none`, and no secret."""
    return text.replace(key, "***") if len(key) >= 8 else text


async def ask(client: AsyncOpenAI, text: str, *, model: str, temperature: float, seed: int) -> str:
    """Send one user message, and return the whole of the answer.

    How often and how long is tried is up to the client.

    Raises:
        ModelFailed: When there is no answer, or it is empty or cut off.
    """
    try:
        completion = await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": text}], temperature=temperature, seed=seed
        )
    except OpenAIError as exc:
        origin = f" ({exc.__cause__})" if exc.__cause__ is not None else ""
        said = f"{exc}{origin}"
        shown = without_key(said, client.api_key)
        failure = ModelFailed(f"model {model!r} gave no answer: {type(exc).__name__}: {shown}")
        # A provider may repeat the key that it was sent: then its own words must not get into a traceback either.
        raise failure from (exc if shown == said else None)
    # the client also lets through what is no completion at all, such as the page of a web server
    choices = getattr(completion, "choices", None)
    if not choices:
        raise ModelFailed(
            f"model {model!r} gave no answer: {client.base_url} did not reply with a chat completion; "
            "is that the base URL of an OpenAI-compatible endpoint, such as https://.../v1?"
        )
    answer, finish_reason = choices[0].message.content, choices[0].finish_reason
    if finish_reason == "length":
        raise ModelFailed(f"model {model!r} was cut off at its limit of tokens")
    if not answer or answer.isspace():
        raise ModelFailed(f"model {model!r} gave an empty answer (finish_reason {finish_reason!r})")
    return str(answer)
