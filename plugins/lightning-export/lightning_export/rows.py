"""The rows of a dataset: what training and evaluation read of an attempt."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from lightning_core.adapter import TraceToMessages, TraceToTrajectories
from lightning_core.adapter.calls import agent_calls
from lightning_core.adapter.rewards import match_by_sequence
from lightning_core.adapter.tree import in_order
from lightning_core.types import Span
from lightning_export.attempts import Ended

Row = dict[str, Any]
RowKind = Literal["messages", "sft", "trajectories", "triplets"]

_messages, _trajectories = TraceToMessages(), TraceToTrajectories()


def rows_of(run_id: str, ended: Ended, kind: RowKind, refused: Counter[str]) -> Iterator[Row]:
    """Yield the rows of one attempt. All kinds have the rollout's columns, and its final `reward`.

    - `messages`: the conversation up to each answer, as OpenAI's chat API has it, and its `tools`.
    - `sft`: the same as `prompt` and `completion`; only the completion is to be learned.
    - `trajectories`: `prompt_ids` and `response_ids` of the engine; `loss_mask` is 1 for what the model produced, and
      `logprobs` has its log-probabilities, null elsewhere. `call_rewards` are of the calls, `model` of the first one.
      `refused` counts the answers that are in no row, by reason.
    - `triplets`: `prompt`, `response` and `call_reward` of each call, with the engine's ids where it gave some.
    """
    rollout = ended.rollout
    common = {
        "run_id": run_id,
        "rollout_id": rollout.rollout_id,
        "attempt_id": rollout.attempt.attempt_id,
        "mode": rollout.mode,
        "resources_id": rollout.resources_id,
        "input": json.dumps(rollout.input, ensure_ascii=False, default=str),
        "reward": ended.reward,
    }
    rows = _trajectory_rows(ended.spans, refused) if kind == "trajectories" else _KINDS[kind](ended.spans)
    for row in rows:
        yield common | row


def _message_rows(spans: Sequence[Span]) -> Iterator[Row]:
    for found in _messages(spans):
        yield {"messages": found["messages"], "tools": found["tools"]}


def _sft_rows(spans: Sequence[Span]) -> Iterator[Row]:
    for found in _messages(spans):
        *prompt, answer = found["messages"]
        if prompt and answer["role"] == "assistant":
            yield {"prompt": prompt, "completion": [answer], "tools": found["tools"]}


def _trajectory_rows(spans: Sequence[Span], refused: Counter[str]) -> Iterator[Row]:
    found = _trajectories(spans)
    refused.update(refusal.reason for refusal in found.refused)
    for row in found.rows:
        yield {
            "prompt_ids": row.prompt_ids,
            "response_ids": row.response_ids,
            "loss_mask": row.mask,
            "logprobs": row.logprobs,
            "call_rewards": list(row.rewards),
            "model": row.calls[0].call.model,
        }


def _triplet_rows(spans: Sequence[Span]) -> Iterator[Row]:
    calls = agent_calls(spans)
    rewards = match_by_sequence({call.order: call.spans[0] for call in calls}, in_order(spans), heeds_clocks=True)
    for call in calls:
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


_KINDS: Mapping[RowKind, Callable[[Sequence[Span]], Iterator[Row]]] = {
    "messages": _message_rows,
    "sft": _sft_rows,
    "triplets": _triplet_rows,
}
