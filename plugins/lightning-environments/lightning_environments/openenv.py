"""Environments that a server of OpenEnv runs: reset, step, reward; MCP tools as tools.

The protocol is that of openenv 0.10: JSON over a WebSocket at `/ws`, a session each connection.
https://github.com/meta-pytorch/OpenEnv
"""

import asyncio
import functools
import json
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from lightning_core.agent import Environment, LitAgent, rollout
from lightning_core.emitter import emit_message
from lightning_core.errors import ConfigError, Fault, LightningError
from lightning_core.types import LLM, PromptTemplate
from lightning_environments.agents import client_of, library

_REFUSALS = frozenset({"INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR", "EXECUTION_ERROR"})
"""Errors that what was sent may be to blame for; others are of the server."""


class Refused(LightningError):
    """The environment did not take an action."""


class Session:
    """A session of an environment's server, for as long as a block lasts.

    Args:
        url: The server's, as `http://127.0.0.1:8000`.
        seconds: How long an answer may take.
    """

    def __init__(self, url: str, *, seconds: float = 60.0) -> None:
        self._url = f"{url.rstrip('/').replace('http', 'ws', 1)}/ws" if url.startswith("http") else f"{url}/ws"
        self._seconds = seconds

    async def __aenter__(self) -> Self:
        client = library("websockets.asyncio.client", extra="openenv")
        self._errors = (OSError, library("websockets.exceptions", extra="openenv").WebSocketException)
        try:
            self._socket = await client.connect(self._url, max_size=None, open_timeout=self._seconds)
        except self._errors as exc:
            raise Fault(f"the environment at {self._url} cannot be reached: {exc}; start its server") from exc
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._socket.close()

    async def ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        """Send a message and return what the answer holds.

        Raises:
            Refused: When the environment does not take what was sent.
            Fault: When it cannot be reached, is full, or does not answer in time.
        """
        try:
            async with asyncio.timeout(self._seconds):
                await self._socket.send(json.dumps({"type": kind, "data": data}))
                answer = json.loads(await self._socket.recv())
        except self._errors as exc:
            raise Fault(f"the environment at {self._url} does not answer: {exc!r}") from exc
        content: dict[str, Any] = answer.get("data") or {}
        if answer.get("type") == "error":
            if content.get("code") in _REFUSALS:
                why = [f"{each['loc']}: {each['msg']}" for each in content.get("errors") or ()]
                raise Refused("; ".join([str(content.get("message")), *why]))
            raise Fault(f"the environment at {self._url}: {content.get('code')}: {content.get('message')}")
        return content

    async def reset(self, seed: int) -> dict[str, Any]:
        """Begin an episode, and return what there is to see.

        Raises:
            Fault: When it cannot begin.
        """
        try:
            return await self.ask("reset", {"seed": seed})
        except Refused as exc:
            raise Fault(f"the environment at {self._url} cannot be reset: {exc}") from exc

    async def tools(self) -> list[dict[str, Any]]:
        """Return its tools as OpenAI's API has them; empty where it has none."""
        asked = {"jsonrpc": "2.0", "method": "tools/list", "params": {}, "id": 1}
        try:
            result = (await self.ask("mcp", asked)).get("result") or {}
        except Refused:
            return []
        return [
            {
                "type": "function",
                "function": {
                    "name": each["name"],
                    "description": each.get("description") or "",
                    "parameters": each.get("inputSchema") or each.get("input_schema") or {"type": "object"},
                },
            }
            for each in result.get("tools") or ()
        ]


class OpenEnv(Environment):
    """An environment of OpenEnv; a task is the seed of an episode, and the reward the sum of its steps'.

    Where it has tools, the agent's model calls them. Where not, each reply of the model is an action, as JSON.

    Args:
        url: Of its server, such as `http://127.0.0.1:8000`.
        max_steps: The most steps of an episode.
        seconds: How long the server may take to answer.

    Raises:
        ConfigError: When the URL is not one of HTTP or WebSocket.
    """

    prompt = (
        "Act until the task is done. Where there are no tools, reply with an action alone, as JSON.\n\n{observation}"
    )

    def __init__(self, url: str, *, max_steps: int = 20, seconds: float = 60.0) -> None:
        if not url.startswith(("http://", "https://", "ws://", "wss://")):
            raise ConfigError(f"url is {url!r}; it is that of the environment's server, such as http://127.0.0.1:8000")
        self._url, self._max_steps, self._seconds = url, max_steps, seconds

    def tasks(self, count: int) -> Iterator[dict[str, int]]:
        """Yield seeds, from 0."""
        return ({"seed": seed} for seed in range(count))

    def agent(self) -> LitAgent[Any]:
        """Return an agent that plays an episode, and returns its reward."""

        return rollout(functools.partial(_play, self._url, self._max_steps, self._seconds))


async def _play(
    url: str, max_steps: int, seconds: float, task: dict[str, int], llm: LLM, prompt_template: PromptTemplate
) -> float:
    async with Session(url, seconds=seconds) as session, client_of(llm) as client:
        seen = await session.reset(task["seed"])
        tools = await session.tools()
        first = prompt_template.format(observation=json.dumps(seen.get("observation")))
        messages: list[Any] = [{"role": "user", "content": first}]
        total, steps = 0.0, 0
        options: dict[str, Any] = {**llm.sampling_parameters, **({"tools": tools} if tools else {})}
        while not seen.get("done") and steps < max_steps:
            completion = await client.chat.completions.create(model=llm.model, messages=messages, **options)
            reply = completion.choices[0].message
            messages.append(reply.model_dump(exclude_none=True))
            if tools and not reply.tool_calls:
                break
            for call in reply.tool_calls or (None,):
                seen = await _step(session, reply.content if call is None else call)
                total, steps = total + float(seen.get("reward") or 0.0), steps + 1
                answer = {"role": "user"} if call is None else {"role": "tool", "tool_call_id": call.id}
                messages.append({**answer, "content": json.dumps(seen.get("observation"))})
    emit_message(f"The episode ended after {steps} steps with the reward {total:g}.")
    return total


async def _step(session: Session, chosen: Any) -> dict[str, Any]:
    """Take a step: a call of a tool, or an action as JSON; what is refused is told to the model."""
    try:
        if isinstance(chosen, str) or chosen is None:
            return await session.ask("step", json.loads(chosen or ""))
        called = {"tool_name": chosen.function.name, "arguments": json.loads(chosen.function.arguments or "{}")}
        return await session.ask("step", {"type": "call_tool", **called})
    except (Refused, ValueError) as exc:
        return {"observation": {"error": f"{type(exc).__name__}: {exc}"}}
