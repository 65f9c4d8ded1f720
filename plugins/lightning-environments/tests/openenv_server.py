"""A game, and a calculator with an MCP tool, on openenv's own server: `python openenv_server.py PORT`."""

import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    number: int


class Hint(Observation):
    hint: str


class Game(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: Any = None, episode_id: Any = None, **more: Any) -> Hint:
        self._target = (seed or 0) % 10
        return Hint(hint="guess a number from 0 to 9", done=False, reward=None)

    def step(self, action: Guess, timeout_s: Any = None, **more: Any) -> Hint:
        if action.number == self._target:
            return Hint(hint="right", done=True, reward=1.0)
        return Hint(hint="higher" if action.number < self._target else "lower", done=False, reward=-0.1)

    @property
    def state(self) -> State:
        return State(episode_id="e", step_count=0)


class Calculator(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("calculator")

        @server.tool
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        super().__init__(server)

    def reset(self, seed: Any = None, episode_id: Any = None, **more: Any) -> Observation:
        self._seed = seed or 0
        return Observation(done=False, reward=None, metadata={"question": f"What is {self._seed} + 2?"})

    def _step_impl(self, action: Any, timeout_s: Any = None, **more: Any) -> Observation:
        return Observation(done=False, reward=0.0)

    async def step_async(self, action: Any, timeout_s: Any = None, **more: Any) -> Observation:
        seen = await super().step_async(action, timeout_s=timeout_s, **more)
        if isinstance(action, CallToolAction):
            seen.done = action.arguments == {"a": self._seed, "b": 2}
            seen.reward = float(seen.done)
        return seen

    @property
    def state(self) -> State:
        return State(episode_id="e", step_count=0)


app = FastAPI()
app.mount("/guess", create_fastapi_app(Game, Guess, Hint, max_concurrent_envs=4))
app.mount("/calculator", create_fastapi_app(Calculator, CallToolAction, CallToolObservation, max_concurrent_envs=4))

if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
