"""The model that is trained, as agents call it: behind the proxy, with new weights after each step."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_tokens import Tokenizer, TokensBackend, TokenToolParser
from lightning_tokens.learning.serving import PolicyProxy

from lightning_core.types import NamedResources
from lightning_verl.engine import LLMClient, VerlEngine

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


class Serving(PolicyProxy):
    """Puts a policy behind the proxy.

    Training and measuring draw tokens differently, so each has an entry of the model list: `NAME`, and what `measure`
    says.
    """

    _policy: Policy
    _measured: str | None = None
    _engines: Sequence[VerlEngine] = ()

    async def start(self, policy: Policy) -> None:
        """Serve a policy."""
        self._policy = policy
        self._engines = [_engine(policy, partition) for partition in ("train", "val")]
        self._training, self._measuring = [
            TokensBackend(
                engine,
                policy.tokenizer,
                chat_template_kwargs=policy.chat_template,
                tool_parser=policy.tool_parser,
                reasoning=policy.reasoning,
            )
            for engine in self._engines
        ]
        self._list()
        await self.begin()

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
        return self._resources(model, "val")

    @property
    def name(self) -> str:
        """What agents call the model that is trained."""
        return self._policy.name

    def training(self) -> NamedResources:
        """Return what agents are given that it learns from."""
        return self._resources(self.name, "train")

    def close(self) -> None:
        """Let no further call reach verl, which is about to end. May be called from any thread.

        A call that came later would have Ray start again, all by itself.
        """
        for engine in self._engines:
            engine.close()

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

    def _resources(self, model: str, partition: str) -> NamedResources:
        sampling = self._policy.sampling[partition]
        return self.resources_of(model, {name: sampling[name] for name in ("temperature", "top_p") if name in sampling})

    def _list(self) -> None:
        """Tell the proxy what it serves."""
        measured = {} if self._measured is None else {self._measured: self._measuring}
        self.serve_as({self.name: self._training, **measured})


def _engine(policy: Policy, partition: str) -> VerlEngine:
    return VerlEngine(
        policy.client,
        tokenizer=policy.tokenizer,
        ends=policy.ends,
        stop_token_ids=policy.stop_token_ids,
        sampling=policy.sampling[partition],
        max_response_tokens=policy.max_response_tokens,
        max_context_tokens=policy.max_context_tokens,
    )
