"""The policy as agents call it: behind the proxy, in batches, and not while it learns."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from lightning_proxy import LLMProxy
from lightning_tokens import Generated, TokenEngine, TokensBackend
from lightning_tokens.batcher import Batcher
from lightning_tokens.prompts import reasoning_marks

from lightning_core.algorithm import Algorithm
from lightning_core.types import NamedResources
from lightning_grpo.options import TrainingOptions
from lightning_grpo.policy import Policy
from lightning_grpo.vllm import VllmGenerator

T = TypeVar("T")

RESOURCE = "main_llm"
"""What the model is called among the resources, as in agentlightning 0.3."""


class PolicyEngine:
    """Samples as the loss wants it: the agent says how long an answer may be and what ends it, and nothing else.

    Args:
        generator: Continues prompts.
        temperature: At which tokens are drawn, from the whole distribution.
        max_context_tokens: The most tokens that a prompt and its answer may have together.
    """

    lowers_max_tokens = True
    """An answer ends where the context does, whatever the agent asks."""

    def __init__(self, generator: TokenEngine, *, temperature: float, max_context_tokens: int) -> None:
        self._generator = generator
        self._temperature = temperature
        self.max_context_tokens = max_context_tokens

    async def generate(self, prompt_ids: list[int], sampling: Mapping[str, Any], *, request_id: str) -> Generated:
        """Continue a prompt that leaves room for an answer; the proxy refuses any other."""
        room = self.max_context_tokens - len(prompt_ids)
        asked = {name: sampling[name] for name in ("stop", "stop_token_ids") if name in sampling}
        asked |= {"temperature": self._temperature, "max_tokens": min(sampling.get("max_tokens", room), room)}
        return await self._generator.generate(prompt_ids, asked, request_id=request_id)


class Serving:
    """Serves a policy, under the name of the weights that it has. Belongs to one event loop.

    Args:
        algorithm: Its store, budget, what else agents are given, and the trainer's proxy; without it there is one of
            its own, on this machine alone.
        policy: The model.
        options: What it is called, and how tokens are drawn; where a server draws them.
        key: Names its resources within the run: the same one again continues them.
        folder: Where a server finds weights.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        policy: Policy,
        *,
        options: TrainingOptions,
        key: str,
        folder: Path,
    ) -> None:
        self._algorithm = algorithm
        self._policy = policy
        self._options = options
        self._folder = folder
        self._store = algorithm.get_store()
        self._name = Path(options.model).name
        """What agents call it, whatever weights it has."""
        proxy = cast(LLMProxy | None, algorithm.get_llm_proxy())  # no other gets here
        self._is_own = proxy is None
        self._proxy = LLMProxy(store=self._store, key="", budget=algorithm.get_budget()) if proxy is None else proxy
        self._others = [] if self._is_own else list(self._proxy.model_list)
        self._key = key
        self._batcher = Batcher(policy, default_max_tokens=options.max_tokens)
        self._server: VllmGenerator | None = None
        if options.generator != "module":
            self._server = VllmGenerator(options.generator, policy, options=options, folder=folder / "served")
        self._backend = TokensBackend(
            PolicyEngine(
                self._server or self._batcher,
                temperature=options.temperature,
                max_context_tokens=min(options.max_tokens, policy.context),
            ),
            policy.tokenizer,
            reasoning=reasoning_marks(policy.tokenizer),
            loop=asyncio.get_running_loop(),
        )

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._batcher.run(), name="batches")
        if not self._proxy.is_running():
            await self._proxy.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop serving; a proxy of the trainer's goes on, with what it had."""
        self._running.cancel()
        if self._server is not None:
            await self._server.aclose()
        if self._is_own:
            await self._proxy.stop()
        else:
            self._proxy.update_model_list(self._others)

    async def serve(self, model: str) -> tuple[NamedResources, str]:
        """Serve the policy under its name, and under one that says which weights it has.

        Returns:
            What agents are given, and its id in the store.
        """
        if self._server is not None and self._server.version != self._policy.version:
            await self._server.take()
        self._batcher.version = self._policy.version
        entries = [{"model_name": each, "backend": self._backend} for each in dict.fromkeys((self._name, model))]
        self._proxy.update_model_list([*self._others, *entries])
        sampling = {"temperature": self._options.temperature}
        given = self._algorithm.get_initial_resources() or {}
        resources = {**given, RESOURCE: self._proxy.as_resource(model=model, sampling_parameters=sampling)}
        update = await self._store.add_resources(resources, request_id=f"{self._key}/resources/{model}")
        if update.resources != resources:  # those of before it was taken up again: the proxy is elsewhere now
            update = await self._store.update_resources(update.resources_id, resources)
        return resources, update.resources_id

    async def change(self, change: Callable[[], T]) -> T:
        """Change the policy in a thread: calls wait meanwhile, of agents that were given up there may be some."""
        return await self._batcher.update(change, None)
