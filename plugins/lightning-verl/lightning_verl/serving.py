"""The model that is trained, as agents call it: behind the proxy, with new weights after each step."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lightning_tokens import Generated, Tokenizer, TokensBackend, TokenToolParser
from lightning_tokens.learning.serving import PolicyProxy

from lightning_core.types import NamedResources

_PAUSE_SECONDS = 24 * 3600.0
"""How long an agent's call may wait for new weights: as long as a step takes."""


_AGENTS_CHOICE = ("stop", "stop_token_ids")
_REASONS = {"stop": "stop", "length": "length", "aborted": "abort", "abort": "abort"}


class LLMClient(Protocol):
    """What is needed of verl's `LLMServerClient`."""

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any: ...


class VerlEngine:
    """Samples from the policy.

    How tokens are drawn is the algorithm's to say: the loss is right only for the distribution that they were drawn
    from. The agent says how long an answer may be, and what ends it.

    Args:
        client: verl's.
        tokenizer: The model's.
        ends: The tokens that end an answer.
        sampling: `temperature`, `top_p`, `top_k`, by vLLM's names.
        max_response_tokens: The longest answer, where the agent says none that is shorter.
        max_context_tokens: The most tokens that a prompt and its answer may have together.
        stop_token_ids: What ends an answer besides, whatever the agent says.
    """

    lowers_max_tokens = True
    """An answer ends where the context does, whatever the agent asks."""

    def __init__(
        self,
        client: LLMClient,
        *,
        tokenizer: Tokenizer,
        ends: Collection[int],
        sampling: Mapping[str, Any],
        max_response_tokens: int,
        max_context_tokens: int,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        self._client: LLMClient | None = client
        self._tokenizer = tokenizer
        self._ends = ends
        self._sampling = dict(sampling)
        self._max_response_tokens = max_response_tokens
        self.max_context_tokens = max_context_tokens
        self._stop_token_ids = list(stop_token_ids)

    def close(self) -> None:
        """Refuse every further call: there is no model any more. May be called from any thread.

        The client is let go: as long as somebody has it, Ray keeps an actor of verl's.
        """
        self._client = None

    async def generate(self, prompt_ids: list[int], sampling: Mapping[str, Any], *, request_id: str) -> Generated:
        """Continue a prompt that leaves room for an answer; the proxy refuses any other.

        Raises:
            RuntimeError: After `close`.
        """
        client = self._client
        if client is None:
            raise RuntimeError("the training has ended, and with it the model")
        room = self.max_context_tokens - len(prompt_ids)
        asked = sampling.get("max_tokens")
        limit = self._max_response_tokens if asked is None else min(int(asked), self._max_response_tokens)
        most = max(1, min(limit, room))
        if self._stop_token_ids:
            stops = {*(sampling.get("stop_token_ids") or ()), *self._stop_token_ids}
            sampling = {**sampling, "stop_token_ids": sorted(stops)}
        output = await client.generate(
            request_id,
            prompt_ids=prompt_ids,
            sampling_params={
                **{name: sampling[name] for name in _AGENTS_CHOICE if sampling.get(name) is not None},
                **self._sampling,
                "repetition_penalty": 1.0,
                "logprobs": True,
                "max_tokens": most,
            },
        )
        reason = _REASONS.get(output.stop_reason or "")
        if reason is None:  # verl 0.9 says "completed" of both endings, where vLLM generates
            is_cut = len(output.token_ids) >= most and not self._has_ended(output.token_ids, sampling)
            reason = "length" if is_cut else "stop"
        # Of the servers themselves: what the proxy was told may be older, or newer, than what has answered.
        oldest, newest = (output.extra_fields.get(name) for name in ("min_global_steps", "max_global_steps"))
        versions = None if oldest is None or newest is None else (int(oldest), int(newest))
        return Generated(output.token_ids, output.log_probs, reason, versions)

    def _has_ended(self, token_ids: Sequence[int], sampling: Mapping[str, Any]) -> bool:
        """Return whether an answer of the full length came to its end with its last token."""
        if token_ids[-1] in self._ends or token_ids[-1] in (sampling.get("stop_token_ids") or ()):
            return True
        stops = sampling.get("stop") or ()
        if not stops:
            return False
        text = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return any(stop in text for stop in ([stops] if isinstance(stops, str) else stops))


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
