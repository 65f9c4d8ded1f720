"""How the models that improve prompts are reached."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from openai import AsyncOpenAI, OpenAIError

from lightning_core.errors import AlgorithmError


class Endpoint:
    """A client of somebody else, or the options for one of our own.

    Args:
        client: A client, which stays open.
        base_url: Of an OpenAI-compatible endpoint, `/v1` included; None for `OPENAI_BASE_URL`.
        api_key: For it; None for `OPENAI_API_KEY`. It is shown nowhere.

    Raises:
        ValueError: When there are a client and options for one.
    """

    def __init__(self, client: AsyncOpenAI | None, *, base_url: str | None, api_key: str | None) -> None:
        for name, value in (("base_url", base_url), ("api_key", api_key)):
            if value is None:
                continue
            if client is not None:
                raise ValueError(f"{name} and async_openai_client are both given; the client has its own, so leave one")
            if not isinstance(value, str) or not value.strip():
                got = "an empty text" if isinstance(value, str) else f"a {type(value).__name__}"
                raise ValueError(f"{name} is {got}; give a text, or leave it out for the environment's")
        self._client = client
        self._base_url = base_url
        self._api_key = api_key

    @property
    def is_given(self) -> bool:
        """Whether anybody has said where the models are."""
        return any(given is not None for given in (self._client, self._base_url, self._api_key))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[AsyncOpenAI]:
        """Give a client to an `async with` block.

        Raises:
            AlgorithmError: When there is no key.
        """
        if self._client is not None:
            yield self._client
            return
        async with self.make_client() as client:
            yield client

    def make_client(self) -> AsyncOpenAI:
        """Make a client of our own.

        Raises:
            AlgorithmError: When there is no key.
        """
        try:
            return AsyncOpenAI(base_url=self._base_url, api_key=self._api_key)
        except OpenAIError as exc:
            raise AlgorithmError(
                "apo asks models to improve the prompt, and has no key for them; set OPENAI_API_KEY (and "
                "OPENAI_BASE_URL for a provider other than OpenAI), pass an AsyncOpenAI client to APO, or put both "
                "models into the model_list of llm_proxy"
            ) from exc

    def check(self) -> None:
        """Raise an `AlgorithmError` when there is neither a client nor a key."""
        if self._client is None:
            self.make_client()
