"""The agent that asks the service. A client for a service of yours takes the place of `AgentClient`."""

import os
from abc import ABC, abstractmethod
from typing import Any

import aiohttp

from lightning_core import LLM, AttemptedRollout, Fault, rollout

MAX_TURNS = 5
"""How often the model is asked in a conversation."""


class AgentClientBase(ABC):
    """Starts conversations with a service; one is made for each rollout.

    Args:
        server_address: The URL of the service.
    """

    def __init__(self, server_address: str) -> None:
        self.server_address = server_address

    @abstractmethod
    async def chat(self, trace_id: str, sampling_params: dict[str, Any], **sample: Any) -> Any:
        """Have one conversation; return what the service answers: a number, or an object with `reward` or `error`.

        Args:
            trace_id: What the service sends with each call of the model, as the header `trace_id`.
            sampling_params: How tokens are drawn, such as `temperature`.
            sample: The fields of the row.
        """


class AgentClient(AgentClientBase):
    """Speaks to `agent_service.py`, about rows of GSM8K."""

    async def chat(
        self, trace_id: str, sampling_params: dict[str, Any], *, max_turns: int = MAX_TURNS, **sample: Any
    ) -> Any:
        """Have one conversation. A row with a field `max_turns` says by itself how long it may be."""
        body = {"trace_id": trace_id, "sampling_params": sampling_params, "max_turns": max_turns, **sample}
        no_limit = aiohttp.ClientTimeout(total=None)  # a rollout has one: timeout_seconds
        async with (
            aiohttp.ClientSession(timeout=no_limit) as session,
            session.post(f"{self.server_address}/chat", json=body) as response,
        ):
            return await response.json() if response.ok else {"error": f"{response.status}: {await response.text()}"}


@rollout
async def solve(task: dict[str, Any], llm: LLM, rollout: AttemptedRollout) -> float:
    """Let the service at `AGENT_SERVICE_URL` do a task. Its `trace_id` is what the proxy knows the attempt by."""
    trace_id = f"{rollout.rollout_id}/{rollout.attempt.attempt_id}"
    answer = await AgentClient(os.environ["AGENT_SERVICE_URL"]).chat(trace_id, llm.sampling_parameters, **task)
    if "fault" in answer:
        raise Fault(answer["fault"])
    if "error" in answer:
        raise RuntimeError(answer["error"])
    reward: float = answer["reward"]
    return reward
