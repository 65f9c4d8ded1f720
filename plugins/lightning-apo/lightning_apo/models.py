"""The models that improve prompts: one criticises, one edits."""

import re
from typing import Any, NamedTuple

from openai import AsyncOpenAI

from lightning_apo.messages import Request, find_mark
from lightning_core.errors import AlgorithmError
from lightning_core.secrets import hide_in_text, remember_secrets
from lightning_core.types import PromptTemplate

_USER = re.compile(r"(?<=\w://)[^\s/]+@")
"""The user and the password in a URL."""


class ModelFailed(AlgorithmError):
    """A model gave no answer that can be used."""


class NoAnswer(ModelFailed):
    """A model gave no answer at all: it, or what leads to it, is out of order."""


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
        NoAnswer: When there is no answer, or it is no chat completion; says why.
        ModelFailed: When the answer is empty or cut off; says which.
    """
    try:
        completion = await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": text}], temperature=temperature, seed=seed
        )
    except Exception as exc:  # a client also raises what reading half a reply raises, or its own transport
        reason = f"{exc} ({exc.__cause__})" if exc.__cause__ is not None else str(exc)
        remember_secrets("api_key", getattr(client, "api_key", None))
        shown = _USER.sub("***@", hide_in_text(reason))
        failure = NoAnswer(f"model {model!r} gave no answer: {type(exc).__name__}: {shown}")
        # A provider may repeat the key that it was sent: then its own words must not get into a traceback either.
        raise failure from (exc if shown == reason else None)
    try:
        # The client lets through what is not a completion at all, such as the page of a web server.
        choice = completion.choices[0]
        answer, finish_reason = choice.message.content, getattr(choice, "finish_reason", None)
    except (AttributeError, IndexError, TypeError):
        base_url = _USER.sub("***@", str(getattr(client, "base_url", "the endpoint")))
        raise NoAnswer(
            f"model {model!r} gave no answer: {base_url} did not reply with a chat completion; "
            "is that the base URL of an OpenAI-compatible endpoint, such as https://.../v1?"
        ) from None
    if finish_reason == "length":
        raise ModelFailed(f"model {model!r} was cut off at its limit of tokens")
    if not isinstance(answer, str) or not answer.strip():
        raise ModelFailed(f"model {model!r} gave no text (finish_reason {finish_reason!r})")
    usage = getattr(completion, "usage", None)
    return Answer(answer, _count(usage, "prompt_tokens"), _count(usage, "completion_tokens"))


def _count(usage: Any, name: str) -> int:
    number = getattr(usage, name, None)
    return number if type(number) is int and number > 0 else 0


class PromptModel:
    """Asks a model to criticise prompts, or to edit one as a critique says.

    These are the gradient and the edit of Pryzant et al. 2023 (arXiv 2305.03495, section 2.1). There the model sees
    wrong predictions only; here it sees runs of any reward, with what the agent and its models said and did in them.
    There each gradient gives several edits, and each edit several paraphrases; here a critique gives several edits,
    and edits of these.

    Args:
        client: Asks it.
        model: The model.
        temperature: Its temperature.
        request: What it is asked.
    """

    def __init__(self, client: AsyncOpenAI, model: str, temperature: float, request: Request) -> None:
        self._client = client
        self._model = model
        self._temperature = temperature
        self._request = request

    async def write(self, *, seed: int, **about: Any) -> Answer:
        """Return what the model said, without white space around it.

        Args:
            seed: Sent along, so that an endpoint that honours it gives the same answer again.
            about: What the request shows: `prompt`, `other_prompts`, and `experiments` or `critique`.

        Raises:
            ModelFailed: When the model gave no answer that can be used.
        """
        text = self._request.fill_in(**about)
        answer = await ask(self._client, text, model=self._model, temperature=self._temperature, seed=seed)
        return answer._replace(text=answer.text.strip())


_FENCED = re.compile(r"(`{3,})[^\n`]*\n(.*)\n\1", re.DOTALL)
_MARKED = re.compile(r"<prompt_template>(.*)</prompt_template>", re.DOTALL)


def unwrapped(answer: str) -> str:
    """Take a template out of what a model puts around it: white space, a code fence, our own marks."""
    text = answer.strip()
    fenced = _FENCED.fullmatch(text)
    if fenced and fenced[1] not in fenced[2]:
        text = fenced[2].strip()
    marked = _MARKED.fullmatch(text)
    return marked[1].strip() if marked else text


def why_unusable(text: str, parent: PromptTemplate) -> str | None:
    """Say in one line why an edit cannot take its parent's place; None when it can."""
    if mark := find_mark(text):
        return f"it contains {mark!r}, which marks the template in requests to a model"
    return why_broken(text, parent)


def why_broken(text: str, parent: PromptTemplate) -> str | None:
    """Say in one line why an edit is not a template with the placeholders of its parent; None when it is one."""
    if not text:
        return "it is empty"
    try:
        placeholders = PromptTemplate(template=text, engine=parent.engine).placeholders()
    except ValueError as exc:
        return str(exc)
    missing, unknown = sorted(parent.placeholders() - placeholders), sorted(placeholders - parent.placeholders())
    problems = [f"placeholder {name!r} is missing" for name in missing]
    problems += [f"placeholder {name!r} is new" for name in unknown]
    return ", ".join(problems) or None
