"""From the spans of an attempt to a trajectory of ATIF, and back.

https://github.com/harbor-framework/harbor/blob/main/rfcs/0001-trajectory-format.md
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

from atif import Trajectory
from pydantic import BaseModel, FiniteFloat

from lightning_core.adapter import ModelCall, genai
from lightning_core.adapter.attributes import decoded
from lightning_core.adapter.calls import agent_calls
from lightning_core.adapter.conversation import chat_text
from lightning_core.adapter.usage import total_usage
from lightning_core.emitter import find_reward_spans, get_rewards_from_span
from lightning_core.types import RolloutMode, Span
from lightning_export.attempts import Ended

VERSION = "ATIF-v1.8"
OWN = "lightning_core"
"""Under this name, `extra` has what ATIF has no field for."""

Message = Mapping[str, Any]


def trajectory_of(ended: Ended, *, run_id: str, agent: str, version: str) -> Trajectory | None:
    """Make the trajectory of an attempt: what was said, each message once, in order.

    An answer is a step of the agent, with the engine's tokens where there are some; a tool's result is an observation
    of the step that called it. An answer that stands in a prompt only is marked as copied context. A system prompt that
    is another one than before, as with a clock in it, is told where it changes. A call whose prompt does not go on with
    a conversation, whole, begins another one: all but the first are embedded as subagents.

    Returns:
        The trajectory; None when no message was recorded.
    """
    calls = agent_calls(ended.spans)
    trajectories = [
        _document(conversation, f"{ended.rollout.attempt.attempt_id}{f'-{place}' if place else ''}", agent, version)
        for place, conversation in enumerate(_conversations(calls))
    ]
    if not trajectories:
        return None
    first, *others = trajectories
    first["final_metrics"]["total_cost_usd"] = total_usage(call.usage for call in calls).cost
    fields = {
        "rollout_id": ended.rollout.rollout_id,
        "status": ended.rollout.status,
        "mode": ended.rollout.mode,
        "input": ended.rollout.input,
        "rewards": rewards_of(ended),
    }
    more = {"session_id": run_id, "extra": {OWN: fields}, "subagent_trajectories": others or None}
    return Trajectory.model_validate(first | more)


def _document(conversation: "_Conversation", trajectory_id: str, agent: str, version: str) -> dict[str, Any]:
    calls = conversation.calls
    used = total_usage(call.usage for call in calls)
    return {
        "schema_version": VERSION,
        "trajectory_id": trajectory_id,
        "agent": {
            "name": agent,
            "version": version,
            "model_name": next((call.model for call in calls if call.model), None),
            "tool_definitions": next((list(call.tools) for call in calls if call.tools), None),
        },
        "steps": conversation.steps,
        "final_metrics": {
            "total_prompt_tokens": used.input_tokens,
            "total_completion_tokens": used.output_tokens,
            "total_cost_usd": used.cost,
            "total_steps": len(conversation.steps),
        },
    }


def rewards_of(ended: Ended) -> dict[str, float]:
    """Return the rewards of an attempt by name; the final one first, in case of doubt under the name `reward`."""
    if ended.reward is None:
        return {}
    for span in reversed(find_reward_spans(ended.spans)):
        rewards = {reward.name: float(reward.value) for reward in get_rewards_from_span(span)}
        if next(iter(rewards.values())) == ended.reward:
            return rewards
    return {"reward": ended.reward}


def _conversations(calls: Sequence[ModelCall]) -> list["_Conversation"]:
    conversations: list[_Conversation] = []
    by_end: dict[bytes, _Conversation] = {}
    for call in calls:
        digests = list(accumulate(call.messages, _digest, initial=b""))
        known = next((count for count in range(len(digests) - 1, 0, -1) if digests[count] in by_end), 0)
        conversation = by_end.pop(digests[known]) if known else _Conversation()
        conversation.take(call, known)
        if not known and conversation.steps:
            conversations.append(conversation)
        if conversation.steps:
            by_end[_digest(digests[-1], call.answers[0]) if call.answers else digests[-1]] = conversation
    return conversations


class _Conversation:
    def __init__(self) -> None:
        self.calls: list[ModelCall] = []
        self.steps: list[dict[str, Any]] = []
        self._callers: dict[str, dict[str, Any]] = {}
        """By the id of a tool call, the newest step that made it."""
        self._systems: dict[int, dict[str, Any]] = {}
        """By its place in the prompt, the newest step that tells a system message."""

    def take(self, call: ModelCall, known: int) -> None:
        """Tell of a call what comes after the messages that are told."""
        self.calls.append(call)
        for place, message in enumerate(call.messages):
            before = self._systems.get(place)
            if place >= known:
                self._tell(message, place)
            elif before is not None and _atif_content(message.get("content")) != before["message"]:
                self._tell(message, place)["extra"] = {OWN: {"replaces": before["step_id"]}}
        for answer, choice in list(zip(call.answers, call.choices, strict=False))[:1]:
            step = self._answered(answer)
            if call.model is not None:
                step["model_name"] = call.model
            if call.end_time is not None:
                step["timestamp"] = datetime.fromtimestamp(call.end_time, UTC).isoformat()
            usage = call.usage
            step["llm_call_count"] = 1
            metrics = {
                "prompt_tokens": usage.input_tokens,
                "completion_tokens": usage.output_tokens,
                "cost_usd": usage.cost,
                "prompt_token_ids": call.prompt_token_ids,
                "completion_token_ids": choice.token_ids,
                "logprobs": choice.logprobs,
            }
            if any(value is not None for value in metrics.values()):
                step["metrics"] = metrics

    def _tell(self, message: Message, place: int) -> dict[str, Any]:
        role = message["role"]
        if role == "assistant":
            step = self._answered(message)
            step["is_copied_context"] = True
        elif role == "tool":
            step = self._observe(message)
        else:
            step = self._add("user" if role == "user" else "system", _atif_content(message.get("content")))
            if role in _SYSTEM:
                self._systems[place] = step
        return step

    def _answered(self, answer: Message) -> dict[str, Any]:
        step = self._add("agent", _atif_content(answer.get("content")))
        if reasoning := answer.get("reasoning_content"):
            is_text = isinstance(reasoning, str)
            step["reasoning_content"] = reasoning if is_text else json.dumps(reasoning, ensure_ascii=False)
        calls = []
        for call in answer.get("tool_calls") or ():
            arguments = decoded(call["function"]["arguments"])
            arguments = arguments if isinstance(arguments, dict) else {"arguments": arguments}
            calls.append(
                {"tool_call_id": call["id"], "function_name": call["function"]["name"], "arguments": arguments}
            )
            self._callers[call["id"]] = step
        if calls:
            step["tool_calls"] = calls
        return step

    def _observe(self, message: Message) -> dict[str, Any]:
        called = message.get("tool_call_id")
        step = self._callers.get(str(called))
        result = {"content": _atif_content(message.get("content"))}
        if step is None:
            step = self._add("system", "")
            step["observation"] = {"results": [result]}
        else:
            results = step.setdefault("observation", {"results": []})["results"]
            results.append({"source_call_id": called, **result})
        return step

    def _add(self, source: str, message: Any) -> dict[str, Any]:
        step = {"step_id": len(self.steps) + 1, "source": source, "message": message}
        self.steps.append(step)
        return step


_SYSTEM = ("system", "developer")


def _digest(before: bytes, message: Message) -> bytes:
    """Return the digest of a conversation with one more message, whatever the system is told in it."""
    calls = [
        (call["id"], call["function"]["name"], decoded(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]
    content = "" if message["role"] in _SYSTEM else message.get("content") or ""
    parts = [message["role"], content, calls, message.get("tool_call_id")]
    return hashlib.sha256(before + json.dumps(parts, sort_keys=True, default=str).encode()).digest()


def _atif_content(content: Any) -> Any:
    if not isinstance(content, list):
        return content or ""
    parts = []
    for part in content:
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, Mapping) else image
        url = url if isinstance(url, str) else None
        kind = url.partition(";")[0].removeprefix("data:") if url and url.startswith("data:") else "image/png"
        if url is not None and kind in ("image/jpeg", "image/png", "image/gif", "image/webp"):
            parts.append({"type": "image", "source": {"media_type": kind, "path": url}})
        else:
            parts.append({"type": "text", "text": str(part.get("text") or "") or json.dumps(part, ensure_ascii=False)})
    return parts


def spans_of(trajectory: Trajectory, within: Span | None = None) -> Iterator[Span]:
    """Yield spans as a tracer would have recorded them: the agent, and each of its model calls within it.

    A step that is copied context, or that no model was called for, is part of what was said only. The trajectories of
    subagents, where they are embedded, lie within the agent that they are of.
    """
    times = [_seconds(step.timestamp) for step in trajectory.steps if step.timestamp is not None]
    now = max(times, default=time.time())
    name = trajectory.agent.name
    agent = Span.from_attributes(
        attributes={genai.OPERATION_NAME: "invoke_agent", genai.AGENT_NAME: name},
        name=f"invoke_agent {name}",
        trace_id=None if within is None else within.trace_id,
        parent_id=None if within is None else within.span_id,
        start_time=min(times, default=now),
        end_time=now,
    )
    yield agent
    messages: list[dict[str, Any]] = []
    places: dict[int, int] = {}
    last = agent.start_time
    for step in trajectory.steps:
        ended = last if step.timestamp is None else _seconds(step.timestamp)
        if step.source != "agent":
            message = {"role": step.source, "content": _chat_content(step.message)}
            if step.message or step.observation is None:
                places[step.step_id] = place = places.get(own_of(step).replaces, len(messages))
                messages[place : place + 1] = [message]
        else:
            answer = _answer(step)
            if step.llm_call_count != 0 and not step.is_copied_context:
                yield _call_span(trajectory, step, messages, answer, agent, (last, ended))
            messages.append(answer)
        last = ended
        for result in () if step.observation is None else step.observation.results:
            message = {"role": "user", "content": _chat_content(result.content)}
            if result.source_call_id is not None:
                message |= {"role": "tool", "tool_call_id": result.source_call_id}
            if result.content is not None:
                messages.append(message)
    for each in trajectory.subagent_trajectories or ():
        yield from spans_of(each, agent)


class Own(BaseModel):
    """What `extra` of a trajectory, or of a step, has of ours."""

    rewards: dict[str, FiniteFloat] = {}
    mode: RolloutMode | None = None
    status: str | None = None
    input: Any = None
    replaces: int = 0
    """Of a step: the step whose message this one stands for from now on; 0 for none."""


class Verdict(BaseModel):
    """What harbor's verifier found."""

    rewards: dict[str, FiniteFloat | None] | None = None


class StepResult(BaseModel):
    """What is read of one of the steps of harbor's trials."""

    exception_info: Any = None


class TrialResult(StepResult):
    """What is read of the `result.json` of one of harbor's trials."""

    verifier_result: Verdict | None = None
    step_results: list[StepResult] | None = None


def own_of(part: Any) -> Own:
    """Return what is ours in the `extra` of a trajectory or a step."""
    return Own.model_validate((part.extra or {}).get(OWN, {}))


def _answer(step: Any) -> dict[str, Any]:
    answer: dict[str, Any] = {"role": "assistant", "content": _chat_content(step.message)}
    if step.reasoning_content:
        answer["reasoning_content"] = step.reasoning_content
    calls = [
        {
            "id": call.tool_call_id,
            "type": "function",
            "function": {"name": call.function_name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for call in step.tool_calls or ()
    ]
    return {**answer, "tool_calls": calls} if calls else answer


def _call_span(
    trajectory: Trajectory,
    step: Any,
    messages: Sequence[Message],
    answer: Message,
    agent: Span,
    times: tuple[float | None, float | None],
) -> Span:
    model = step.model_name or trajectory.agent.model_name
    metrics = step.metrics
    tools = trajectory.agent.tool_definitions
    attributes = {
        genai.OPERATION_NAME: "chat",
        genai.REQUEST_MODEL: model,
        genai.INPUT_MESSAGES: chat_text(messages),
        genai.OUTPUT_MESSAGES: chat_text([answer], ["tool_calls" if step.tool_calls else "stop"]),
        genai.TOOL_DEFINITIONS: None if tools is None else json.dumps(tools, ensure_ascii=False),
    }
    if metrics is not None:
        attributes |= {
            genai.INPUT_TOKENS: metrics.prompt_tokens,
            genai.OUTPUT_TOKENS: metrics.completion_tokens,
            genai.COST: metrics.cost_usd,
            genai.PROMPT_TOKEN_IDS: metrics.prompt_token_ids,
            genai.RESPONSE_TOKEN_IDS: metrics.completion_token_ids,
            genai.RESPONSE_LOGPROBS: metrics.logprobs,
        }
    return Span.from_attributes(
        attributes={name: value for name, value in attributes.items() if value is not None},
        name=f"chat {model}" if model else "chat",
        trace_id=agent.trace_id,
        parent_id=agent.span_id,
        start_time=times[0],
        end_time=times[1],
    )


def _chat_content(content: Any) -> Any:
    if content is None or isinstance(content, str):
        return content or ""
    return [
        {"type": "text", "text": part.text}
        if part.type == "text"
        else {"type": f"{part.type}_url", f"{part.type}_url": {"url": part.source.path}}
        for part in content
    ]


def _seconds(timestamp: str) -> float:
    moment = datetime.fromisoformat(timestamp)
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
