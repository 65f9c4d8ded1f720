"""The rows of a dataset: what training and evaluation read of an attempt."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from lightning_core.adapter import TraceToMessages, TraceToTrajectories
from lightning_core.adapter.base import TraceAdapter
from lightning_core.adapter.calls import agent_calls
from lightning_core.adapter.rewards import match_by_sequence
from lightning_core.adapter.trajectory import as_trajectory_adapter
from lightning_core.adapter.tree import in_order
from lightning_core.registry import default_registry
from lightning_core.runs.folder import RunFolder
from lightning_core.types import Span
from lightning_export.attempts import Ended

Row = dict[str, Any]
RowKind = Literal["messages", "sft", "trajectories", "triplets"]

_messages = TraceToMessages()


class RowsOf:
    """Makes rows of the attempts of one run. All kinds have the rollout's columns, and its final `reward`.

    - `messages`: the conversation up to each answer, as OpenAI's chat API has it, and its `tools`.
    - `sft`: the same as `prompt` and `completion`; only the completion is to be learned.
    - `trajectories`: `prompt_ids` and `response_ids` of the engine; `loss_mask` is 1 for what the model produced, and
      `logprobs` has its log-probabilities, null elsewhere. `call_rewards` are of the calls, `model` of the first one.
      Which calls is what the run's own adapter says.
    - `triplets`: `prompt`, `response` and `call_reward` of each call, with the engine's ids where it gave some.
    """

    def __init__(self, run: RunFolder, kind: RowKind) -> None:
        self._run_id = run.run_id
        self._adapter = _adapter_of(run) if kind == "trajectories" else TraceToTrajectories()
        self._make = {
            "messages": self._message_rows,
            "sft": self._sft_rows,
            "trajectories": self._trajectory_rows,
            "triplets": self._triplet_rows,
        }[kind]
        self.refused: Counter[str] = Counter()
        """The answers that are in no trajectory, by reason."""

    def __call__(self, ended: Ended) -> list[Row]:
        """Return the rows of one attempt."""
        rollout = ended.rollout
        common = {
            "run_id": self._run_id,
            "rollout_id": rollout.rollout_id,
            "attempt_id": rollout.attempt.attempt_id,
            "mode": rollout.mode,
            "resources_id": rollout.resources_id,
            "input": json.dumps(rollout.input, ensure_ascii=False, default=str),
            "reward": ended.reward,
        }
        return [common | row for row in self._make(ended.spans)]

    def _message_rows(self, spans: Sequence[Span]) -> Iterator[Row]:
        failed = {span.span_id for call in agent_calls(spans) if call.error is not None for span in call.spans}
        for row in _messages([span for span in spans if span.span_id not in failed]):
            if row["messages"][-1]["role"] == "assistant":
                yield {"messages": row["messages"], "tools": row["tools"]}

    def _sft_rows(self, spans: Sequence[Span]) -> Iterator[Row]:
        for row in self._message_rows(spans):
            *prompt, answer = row["messages"]
            if prompt:
                yield {"prompt": prompt, "completion": [answer], "tools": row["tools"]}

    def _trajectory_rows(self, spans: Sequence[Span]) -> Iterator[Row]:
        trajectories = self._adapter(spans)
        self.refused.update(refusal.reason for refusal in trajectories.refused)
        for row in trajectories.rows:
            yield {
                "prompt_ids": row.prompt_ids,
                "response_ids": row.response_ids,
                "loss_mask": row.mask,
                "logprobs": row.logprobs,
                "call_rewards": list(row.rewards),
                "model": row.calls[0].call.model,
            }

    def _triplet_rows(self, spans: Sequence[Span]) -> Iterator[Row]:
        calls = agent_calls(spans)
        rewards = match_by_sequence({call.order: call.spans[0] for call in calls}, in_order(spans), heeds_clocks=True)
        for call in calls:
            if call.messages or call.answers or call.response_token_ids:
                yield {
                    "prompt": list(call.messages),
                    "response": call.answers[0] if call.answers else None,
                    "prompt_ids": call.prompt_token_ids,
                    "response_ids": call.response_token_ids,
                    "logprobs": call.logprobs,
                    "call_reward": rewards[call.order][0].value if call.order in rewards else None,
                    "model": call.model,
                    "finish_reason": call.finish_reason,
                    "error": call.error,
                }


def _adapter_of(run: RunFolder) -> TraceToTrajectories:
    """Return what `verl` would learn from with the adapter of a run; all calls where it is of another kind."""
    spec = run.manifest().origin.config.get("adapter")
    built = None if spec is None else default_registry().build("adapters", spec, expected=TraceAdapter)
    try:
        return as_trajectory_adapter(built)
    except TypeError:
        return TraceToTrajectories()
