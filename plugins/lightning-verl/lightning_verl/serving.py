"""The model that is trained, as agents call it: behind the proxy, with new weights after each step."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_proxy import LLMProxy
from lightning_tokens import Tokenizer, TokensBackend, TokenToolParser

from lightning_core.budget import Budget
from lightning_core.store import LightningStore
from lightning_core.types import NamedResources
from lightning_verl.engine import LLMClient, VerlEngine

RESOURCE = "main_llm"
"""What the model is called among the resources, as in agentlightning 0.3."""

_PAUSE_SECONDS = 24 * 3600.0
"""How long an agent's call may wait for new weights: as long as a step takes."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The model that verl serves."""

    name: str
    """What agents call it."""
    client: LLMClient
    """Takes and gives tokens."""
    tokenizer: Tokenizer
    ends: Collection[int]
    """The tokens that end an answer: the tokenizer's, and those that the model's author names."""
    sampling: Mapping[str, Mapping[str, Any]]
    """By partition, how tokens are drawn."""
    chat_template: Mapping[str, Any]
    """Options of the tokenizer's chat template."""
    max_response_tokens: int
    max_context_tokens: int
    tool_parser: TokenToolParser | str = "hermes"
    """Finds calls of tools in answers."""
    reasoning: tuple[str, str] | None = None
    """What begins and ends the thinking of an answer; None where the model does not think."""
    stop_token_ids: Sequence[int] = ()
    """What ends an answer besides, where the model would go on behind a call."""


class Serving:
    """Puts a policy behind the proxy. Belongs to one event loop.

    Training and measuring draw tokens differently, so each has an entry of the model list: `NAME`, and what `measure`
    says. Other models of the trainer's proxy stay.

    Args:
        store: The run's.
        proxy: The trainer's; None for one of its own, on this machine alone.
        key: Names its resources within the run: the same one again continues them.
        resources: What else agents are given.
        budget: What a proxy of its own counts calls against.
    """

    def __init__(
        self,
        store: LightningStore,
        *,
        proxy: LLMProxy | None,
        key: str,
        resources: NamedResources | None = None,
        budget: Budget | None = None,
    ) -> None:
        self._store = store
        self._is_own = proxy is None
        if proxy is None:
            proxy = LLMProxy(store=store, key="", budget=budget)
        self.proxy = proxy
        """What agents' calls go through."""
        self._key = key
        self._resources = dict(resources or {})
        self._policy: Policy | None = None
        self._others: list[Mapping[str, Any]] = [] if self._is_own else list(proxy.model_list)
        self._measured: str | None = None
        self._engines: list[VerlEngine] = []
        self._backends: dict[str, TokensBackend] = {}
        self._ids: dict[str, str] = {}

    async def start(self, policy: Policy) -> None:
        """Serve a policy."""
        self._policy = policy
        self._list()
        if not self.proxy.is_running():
            await self.proxy.start()

    def measure(self, model: str) -> NamedResources:
        """Serve the policy also for being measured, and no more under the name that it had for that before.

        Args:
            model: What agents call it.

        Returns:
            What agents are given.
        """
        if model != self._measured:
            self._measured = model
            self._list()
        return self.measured(model)

    def measured(self, model: str) -> NamedResources:
        """Return what agents are given when a model is measured."""
        return self._resources_of(model, "val")

    @property
    def name(self) -> str:
        """What agents call the model that is trained."""
        assert self._policy is not None
        return self._policy.name

    def training(self) -> NamedResources:
        """Return what agents are given that it learns from."""
        return self._resources_of(self.name, "train")

    def close(self) -> None:
        """Let no further call reach verl, which is about to end. May be called from any thread.

        A call that came later would have Ray start again, all by itself.
        """
        for engine in self._engines:
            engine.close()

    async def stop(self) -> None:
        """Stop serving; a proxy of the trainer's goes on, with what it had."""
        if self._is_own:
            await self.proxy.stop()
            return
        self.proxy.update_model_list(self._others)
        if self.proxy.is_running():  # and may be paused, where the run ended while the model learned
            await self.proxy.resume()

    def other_models(self, resources: NamedResources) -> frozenset[str]:
        """Return what the other models of the proxy are called by agents that are given these resources."""
        names = {str(entry.get("model_name")) for entry in self._others}
        return frozenset(names - {self.name, getattr(resources[RESOURCE], "model", None)})

    async def resources_id(self, resources: NamedResources) -> str:
        """Return the id of what agents are given, in the store."""
        model = str(getattr(resources[RESOURCE], "model", ""))
        if model not in self._ids:
            update = await self._store.add_resources(resources, request_id=f"{self._key}/resources/{model}")
            if update.resources != resources:  # those of before it was taken up again: the proxy is elsewhere now
                update = await self._store.update_resources(update.resources_id, resources)
            self._ids[model] = update.resources_id
        return self._ids[model]

    async def pause(self, *, drain_seconds: float | None = None) -> None:
        """Let calls wait: the weights are about to change.

        Args:
            drain_seconds: How long those under way may take to end, before they are cut off; None to let them be.
        """
        if self.proxy.is_running():
            await self.proxy.pause(_PAUSE_SECONDS)
            if drain_seconds is not None:
                await self.proxy.drain(drain_seconds)

    async def resume(self, version: int) -> None:
        """Let calls in again, for new weights.

        Args:
            version: The step that made them; 0 for those that the run began with.
        """
        self.proxy.set_weight_version(version)
        if self.proxy.is_running():
            await self.proxy.resume()

    def _resources_of(self, model: str, partition: str) -> NamedResources:
        assert self._policy is not None
        sampling = self._policy.sampling[partition]
        llm = self.proxy.as_resource(
            model=model,
            sampling_parameters={name: sampling[name] for name in ("temperature", "top_p") if name in sampling},
        )
        return {**self._resources, RESOURCE: llm}

    def _list(self) -> None:
        """Tell the proxy what it serves."""
        policy = self._policy
        assert policy is not None
        entries = [self._entry(policy, policy.name, "train")]
        if self._measured is not None:
            entries.append(self._entry(policy, self._measured, "val"))
        names = {entry["model_name"] for entry in entries}
        others = [entry for entry in self._others if entry.get("model_name") not in names]
        self.proxy.update_model_list([*others, *entries])

    def _entry(self, policy: Policy, name: str, partition: str) -> dict[str, Any]:
        if partition not in self._backends:
            engine = VerlEngine(
                policy.client,
                tokenizer=policy.tokenizer,
                ends=policy.ends,
                stop_token_ids=policy.stop_token_ids,
                sampling=policy.sampling[partition],
                max_response_tokens=policy.max_response_tokens,
                max_context_tokens=policy.max_context_tokens,
            )
            self._engines.append(engine)
            self._backends[partition] = TokensBackend(
                engine,
                policy.tokenizer,
                chat_template_kwargs=policy.chat_template,
                tool_parser=policy.tool_parser,
                reasoning=policy.reasoning,
            )
        return {"model_name": name, "backend": self._backends[partition]}
