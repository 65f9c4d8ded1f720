"""The policy as agents call it: behind the proxy, in batches, and not while it learns."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

from lightning_proxy import LLMProxy
from lightning_tokens import Generated, TokensBackend
from lightning_tokens.batcher import Batcher
from lightning_tokens.prompts import reasoning_marks

from lightning_core.budget import Budget
from lightning_core.store import LightningStore
from lightning_core.types import NamedResources
from lightning_grpo.policy import Policy

T = TypeVar("T")

RESOURCE = "main_llm"
"""What the model is called among the resources, as in agentlightning 0.3."""


class PolicyEngine:
    """Samples as the loss wants it: the agent says how long an answer may be and what ends it, and nothing else.

    Args:
        batcher: Gathers calls.
        temperature: At which tokens are drawn, from the whole distribution.
        max_context_tokens: The most tokens that a prompt and its answer may have together.
    """

    lowers_max_tokens = True
    """An answer ends where the context does, whatever the agent asks."""

    def __init__(self, batcher: Batcher, *, temperature: float, max_context_tokens: int) -> None:
        self._batcher = batcher
        self._temperature = temperature
        self.max_context_tokens = max_context_tokens

    async def generate(self, prompt_ids: list[int], sampling: Mapping[str, Any], *, request_id: str) -> Generated:
        """Continue a prompt that leaves room for an answer; the proxy refuses any other."""
        room = self.max_context_tokens - len(prompt_ids)
        asked = {name: sampling[name] for name in ("stop", "stop_token_ids") if name in sampling}
        asked |= {"temperature": self._temperature, "max_tokens": min(sampling.get("max_tokens", room), room)}
        return await self._batcher.generate(prompt_ids, asked, request_id=request_id)


class Serving:
    """Serves a policy, under the name of the weights that it has. Belongs to one event loop.

    Args:
        policy: The model.
        store: The run's.
        name: What agents call it, whatever weights it has.
        proxy: The trainer's; None for one of its own, on this machine alone.
        key: Names its resources within the run: the same one again continues them.
        resources: What else agents are given.
        budget: What a proxy of its own counts calls against.
        temperature: At which tokens are drawn.
        max_tokens: Of a conversation.
    """

    def __init__(
        self,
        policy: Policy,
        store: LightningStore,
        *,
        name: str,
        proxy: LLMProxy | None,
        key: str,
        resources: NamedResources,
        budget: Budget | None,
        temperature: float,
        max_tokens: int,
    ) -> None:
        self._policy = policy
        self._store = store
        self._name = name
        self._is_own = proxy is None
        self.proxy = LLMProxy(store=store, key="", budget=budget) if proxy is None else proxy
        self._others = [] if self._is_own else list(self.proxy.model_list)
        self._key = key
        self._resources = resources
        self._batcher = Batcher(policy, default_max_tokens=max_tokens)
        self._backend = TokensBackend(
            PolicyEngine(self._batcher, temperature=temperature, max_context_tokens=min(max_tokens, policy.context)),
            policy.tokenizer,
            reasoning=reasoning_marks(policy.tokenizer),
            loop=asyncio.get_running_loop(),
        )
        self._sampling = {"temperature": temperature}
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._batcher.run(), name="batches")
        if not self.proxy.is_running():
            await self.proxy.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop serving; a proxy of the trainer's goes on, with what it had."""
        if self._running is not None:
            self._running.cancel()
        if self._is_own:
            await self.proxy.stop()
        else:
            self.proxy.update_model_list(self._others)

    @property
    def other_models(self) -> frozenset[str]:
        """What the other models of the proxy are called."""
        return frozenset(str(entry.get("model_name")) for entry in self._others)

    async def serve(self, model: str) -> tuple[NamedResources, str]:
        """Serve the policy under its name, and under one that says which weights it has.

        Returns:
            What agents are given, and its id in the store.
        """
        names = dict.fromkeys((self._name, model))
        self.proxy.update_model_list(
            [*self._others, *({"model_name": each, "backend": self._backend} for each in names)]
        )
        self._batcher.version = self._policy.version
        resources = self.resources(model)
        update = await self._store.add_resources(resources, request_id=f"{self._key}/resources/{model}")
        if update.resources != resources:  # those of before it was taken up again: the proxy is elsewhere now
            update = await self._store.update_resources(update.resources_id, resources)
        return resources, update.resources_id

    def resources(self, model: str) -> NamedResources:
        """Return what agents are given that call a model by its name."""
        return {**self._resources, RESOURCE: self.proxy.as_resource(model=model, sampling_parameters=self._sampling)}

    async def change(self, change: Callable[[], T]) -> T:
        """Change the policy in a thread: calls wait meanwhile, of agents that were given up there may be some."""
        return await self._batcher.update(change, None)
