"""What the searches for better prompts have in common: `APO`, and `GEPA` of lightning-gepa."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from lightning_apo.endpoint import Endpoint
from lightning_apo.inputs import digest_of_all, split_samples, tuned_prompts
from lightning_apo.saved import SavedSearch
from lightning_apo.tools import Setting, Trials
from lightning_core.adapter import TraceToMessages
from lightning_core.algorithm import Algorithm
from lightning_core.types import Dataset, NamedResources, PromptTemplate

Model = Annotated[str, Field(pattern=r"\S", description="the name of a model")]
Count = Annotated[int, Field(ge=1, description="an integer of at least 1")]
Integer = Annotated[int, Field(description="an integer")]
Temperature = Annotated[float, Field(ge=0, description="a number of at least 0")]
Flag = Annotated[bool, Field(description="true or false")]
PromptNames = Annotated[
    tuple[Annotated[str, Field(pattern=r"\S")], ...] | None,
    BeforeValidator(lambda names: tuple(names) or 0 if isinstance(names, list | tuple) else names),
    Field(description="a list of names of prompts, or none for all of them"),
]


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """The most that a search does; the held-out test and the agent's own calls come on top. Its text is one line."""

    rollouts: int
    """On training and on validation samples."""
    model_calls: int
    """All requests to models, but for the agent's own. What a client sends again after a failure is not counted."""
    asks: str
    """Which models these go to."""

    def __str__(self) -> str:
        return f"at most {self.rollouts:,} rollouts and {self.model_calls:,} model calls of its own ({self.asks})"


class SearchOptions(BaseModel):
    """The options of a search. The description of a field says what its value has to be.

    Raises:
        ValueError: Names the option that has a value it cannot have.
    """

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False, extra="forbid")

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as exc:
            name = str(exc.errors()[0]["loc"][0])
            what = type(self).model_fields[name].description
            raise ValueError(f"{name} is {options.get(name)!r}; it has to be {what}") from None

    def plan(self, *, n_train: int, n_val: int, n_prompts: int) -> Any:
        """Count the most that a search can do with so many samples and prompts."""
        raise NotImplementedError


S = TypeVar("S", bound=Setting)
P = TypeVar("P", bound=SearchPlan)
O = TypeVar("O", bound=SearchOptions)  # noqa: E741


class PromptSearch(Algorithm, Generic[O, P]):
    """Searches for better prompts with models that it asks.

    Args:
        endpoint: Leads to these models.
        options: The options of the search.
    """

    called: ClassVar[str]
    """What the algorithm is called."""

    def __init__(self, endpoint: Endpoint, options: O) -> None:
        self._endpoint = endpoint
        self._options = options

    def plan(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> P:
        """Say what a run on these datasets does at most: rollouts and model calls. Its text is one line.

        The prompts are those of the initial resources; without them, one is taken for granted.

        Raises:
            InvalidInput: When a dataset or the initial resources cannot be used, or there are too few rollouts.
        """
        self._endpoint.check_budget(self.get_llm_proxy(), self.get_budget())
        resources = self.get_initial_resources()
        n_prompts = 1 if resources is None else len(self._tuned_prompts(resources))
        train, val = split_samples(train_dataset, val_dataset, algorithm=self.called)
        plan: P = self._options.plan(n_train=len(train), n_val=len(val), n_prompts=n_prompts)
        return plan

    def check_access(self) -> None:
        """See `Algorithm.check_access`."""
        self._endpoint.check_access(self.get_llm_proxy())

    def _tuned_prompts(self, resources: NamedResources) -> dict[str, PromptTemplate]:
        return tuned_prompts(resources, getattr(self._options, "prompt_names", None), algorithm=self.called)

    @asynccontextmanager
    async def _setting(
        self,
        make: Callable[..., S],
        train_dataset: Dataset[Any] | None,
        val_dataset: Dataset[Any] | None,
        *,
        depends_on: Mapping[str, Any] | None = None,
        keeps_answers: bool = False,
        timeout_seconds: float | None = None,
    ) -> AsyncIterator[S]:
        """Give what a search works with to an `async with` block.

        Args:
            make: Makes it of the fields of a `Setting`, the `options`, and a `client` of the models.
            train_dataset: See `Algorithm.run`.
            val_dataset: See `Algorithm.run`.
            depends_on: What the search depends on besides its options, prompts and samples.
            keeps_answers: See `SavedSearch`.
            timeout_seconds: See `Trials`.
        """
        store, proxy, resources = self.get_store(), self.get_llm_proxy(), self.get_initial_resources() or {}
        prompts = self._tuned_prompts(resources)
        train, val = split_samples(train_dataset, val_dataset, algorithm=self.called)
        about = self._options.model_dump() | dict(depends_on or {})
        about |= {"train_samples": digest_of_all(train), "val_samples": digest_of_all(val)}
        about["prompts"] = {name: [prompt.engine, prompt.template] for name, prompt in prompts.items()}
        saved = await SavedSearch.open(
            store,
            json.loads(json.dumps(about)),  # as the store gives it back
            counts_calls=not self._endpoint.is_behind(proxy),
            algorithm=self.called,
            keeps_answers=keeps_answers,
        )
        trials = Trials(
            store,
            resources,
            search_key=saved.name,
            timeout_seconds=timeout_seconds,
            config=self.get_rollout_config(),
        )
        async with self._endpoint.open(store, proxy) as client:
            yield make(
                options=self._options,
                prompts=prompts,
                trials=trials,
                saved=saved,
                client=client,
                adapter=self._adapter if isinstance(self._adapter, TraceToMessages) else TraceToMessages(),
                train=train,
                val=val,
            )
