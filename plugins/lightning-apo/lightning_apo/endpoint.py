"""How an algorithm reaches the models that it asks by itself."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from openai import AsyncOpenAI, OpenAIError

from lightning_core.algorithm.own_calls import own_calls
from lightning_core.budget import Budget
from lightning_core.errors import AlgorithmError, InvalidInput
from lightning_core.model_proxy import ModelProxy
from lightning_core.store import LightningStore


class Endpoint:
    """Leads to the models that an algorithm asks.

    Where the run has a model proxy that serves all of them, they are asked through it: their calls then count in the
    run's budget, and are recorded. A client goes around it.

    Args:
        algorithm: What the algorithm is called.
        models: The option of the algorithm that names a model -> the model.
        client: A client, which stays open; None for one of the environment's `OPENAI_BASE_URL` and `OPENAI_API_KEY`.
    """

    def __init__(self, algorithm: str, models: Mapping[str, str], client: AsyncOpenAI | None) -> None:
        self._algorithm = algorithm
        self._models = models
        self._client = client

    def is_behind(self, proxy: ModelProxy | None) -> bool:
        """Whether the models are asked through this proxy."""
        return proxy is not None and self._client is None and set(self._models.values()) <= set(proxy.models())

    @asynccontextmanager
    async def open(self, store: LightningStore, proxy: ModelProxy | None) -> AsyncIterator[AsyncOpenAI]:
        """Give a client to an `async with` block.

        Raises:
            AlgorithmError: When there is no key.
        """
        if self._client is not None:
            yield self._client
        elif proxy is None or not self.is_behind(proxy):
            async with self._make_client() as client:
                yield client
        else:
            async with (
                own_calls(store, proxy, algorithm=self._algorithm) as llm,
                # A proxy without keys takes any, and the client wants one.
                AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client,
            ):
                yield client

    def check_access(self, proxy: ModelProxy | None) -> None:
        """Raise an `AlgorithmError` when there is neither a client nor a key."""
        if self._client is None and not self.is_behind(proxy):
            self._make_client()

    def check_budget(self, proxy: ModelProxy | None, budget: Budget | None) -> None:
        """Raise an `InvalidInput` when the calls would not count in a budget that limits calls, tokens or money."""
        counted = [] if budget is None else [name for name in budget.limits if name != "seconds"]
        if proxy is None or not counted or self.is_behind(proxy):
            return
        raise InvalidInput(
            f"the budget limits {', '.join(counted)}, and the model proxy does not see the calls that "
            f"{self._algorithm} makes to {' and '.join(dict.fromkeys(self._models.values()))} (it serves "
            f"{', '.join(proxy.models()) or 'no model'}): put these into the model_list, and leave "
            "async_openai_client out"
        )

    def _make_client(self) -> AsyncOpenAI:
        try:
            return AsyncOpenAI()
        except OpenAIError as exc:
            raise AlgorithmError(
                f"{self._algorithm} asks models to improve the prompt, and has no key for them; set OPENAI_API_KEY "
                "(and OPENAI_BASE_URL for a provider other than OpenAI), pass an AsyncOpenAI client, or put "
                f"{' and '.join(dict.fromkeys(self._models.values()))} into the model_list of llm_proxy"
            ) from exc
