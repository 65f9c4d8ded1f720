"""verl's generating processes, as the proxy's backend of tokens calls them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from lightning_tokens import Generated, Tokenizer

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
