"""The policy as agents call it: behind the proxy, in batches, and not while it learns."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from lightning_tokens import Generated, TokenEngine, TokensBackend
from lightning_tokens.batcher import Batcher
from lightning_tokens.learning.serving import PolicyProxy
from lightning_tokens.prompts import reasoning_marks

from lightning_core.algorithm import Algorithm
from lightning_core.types import NamedResources
from lightning_grpo.options import TrainingOptions
from lightning_grpo.policy import Policy
from lightning_grpo.vllm import VllmGenerator

T = TypeVar("T")

_TEMPERATURE = 1.0


class PolicyEngine:
    """Samples as the loss wants it: from the whole distribution. The agent says how long an answer may be and its end.

    Args:
        generator: Continues prompts.
        max_context_tokens: The most tokens that a prompt and its answer may have together.
    """

    lowers_max_tokens = True
    """An answer ends where the context does, whatever the agent asks."""

    def __init__(self, generator: TokenEngine, *, max_context_tokens: int) -> None:
        self._generator = generator
        self.max_context_tokens = max_context_tokens

    async def generate(self, prompt_ids: list[int], sampling: Mapping[str, Any], *, request_id: str) -> Generated:
        """Continue a prompt that leaves room for an answer; the proxy refuses any other."""
        room = self.max_context_tokens - len(prompt_ids)
        asked = {name: sampling[name] for name in ("stop", "stop_token_ids") if name in sampling}
        asked |= {"temperature": _TEMPERATURE, "max_tokens": min(sampling.get("max_tokens", room), room)}
        return await self._generator.generate(prompt_ids, asked, request_id=request_id)


class Serving(PolicyProxy):
    """Serves a policy, under the name of the weights that it has. Belongs to one event loop.

    Args:
        algorithm: Its store, budget, what else agents are given, and the trainer's proxy.
        policy: The model.
        options: What it is called, and how tokens are drawn; where a server draws them.
        key: Names its resources within the run: the same one again continues them.
        folder: Where a server finds weights.
    """

    def __init__(
        self, algorithm: Algorithm, policy: Policy, *, options: TrainingOptions, key: str, folder: Path
    ) -> None:
        super().__init__(
            algorithm.get_store(),
            proxy=algorithm.get_llm_proxy(),
            key=key,
            resources=algorithm.get_initial_resources(),
            budget=algorithm.get_budget(),
        )
        self._algorithm = algorithm
        self._policy = policy
        self._options = options
        self._folder = folder
        self._name = Path(options.model).name
        """What agents call it, whatever weights it has."""
        self._batcher = Batcher(policy, default_max_tokens=options.max_tokens)
        self._server: VllmGenerator | None = None
        if options.generator != "module":
            self._server = VllmGenerator(options.generator, policy, options=options, folder=folder / "served")
        self._backend = TokensBackend(
            PolicyEngine(self._server or self._batcher, max_context_tokens=min(options.max_tokens, policy.context)),
            policy.tokenizer,
            reasoning=reasoning_marks(policy.tokenizer),
            loop=asyncio.get_running_loop(),
        )

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._batcher.run(), name="batches")
        await self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._running.cancel()
        if self._server is not None:
            await self._server.aclose()
        await self.stop()

    async def serve(self, model: str) -> tuple[NamedResources, str]:
        """Serve the policy under its name, and under one that says which weights it has.

        Returns:
            What agents are given, and its id in the store.
        """
        if self._server is not None and self._server.version != self._policy.version:
            await self._server.take()
        self._batcher.version = self._policy.version
        self.serve_as(dict.fromkeys((self._name, model), self._backend))
        resources = self.resources_of(model, {"temperature": _TEMPERATURE})
        return resources, await self.resources_id(resources)

    async def change(self, change: Callable[[], T]) -> T:
        """Change the policy in a thread: calls wait meanwhile, of agents that were given up there may be some."""
        return await self._batcher.update(change, None)
