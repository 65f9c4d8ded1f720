"""Environments of OpenEnv: what openenv 0.10's server said, replayed."""

import asyncio
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from lightning_environments.openenv import OpenEnv
from websockets.asyncio.server import ServerConnection, serve

from lightning_core import LLM, PromptTemplate, Trainer
from lightning_core.errors import ConfigError, NoRewards
from lightning_core.registry import default_registry

RECORDED = Path(__file__).parent / "recorded"

Serve = Callable[[Callable[[dict[str, Any]], Any]], str]


class Replay:
    """Answers each message as openenv's server did, or refuses what was not recorded."""

    def __init__(self, name: str) -> None:
        lines = (RECORDED / f"openenv-{name}.jsonl").read_text().splitlines()
        self.pairs = [json.loads(line) for line in lines]
        self.loop = asyncio.new_event_loop()
        self.url = ""

    async def handle(self, socket: ServerConnection) -> None:
        async for message in socket:
            asked = json.loads(message)
            found = [pair["answered"] for pair in self.pairs if pair["asked"] == asked]
            assert found, f"not recorded: {asked}"
            await socket.send(json.dumps(found[0]))

    def __enter__(self) -> "Replay":
        async def start() -> int:
            self.server = await serve(self.handle, "127.0.0.1", 0)
            return int(next(iter(self.server.sockets)).getsockname()[1])

        self.url = f"http://127.0.0.1:{self.loop.run_until_complete(start())}"
        self.thread = Thread(target=self.loop.run_forever)
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        async def stop() -> None:
            self.server.close()
            await self.server.wait_closed()

        asyncio.run_coroutine_threadsafe(stop(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


def play(url: str, model: str, **options: Any) -> Any:
    """Run the agent of an environment on the seed 3, and return the result."""
    agent = OpenEnv(url, **options).agent()
    resources = {
        "main_llm": LLM(endpoint=model, model="m"),
        "main_prompt": PromptTemplate(template=str(OpenEnv.prompt)),
    }
    return Trainer(algorithm="baseline", initial_resources=resources).dev(agent, [{"seed": 3}])


def guess(request: dict[str, Any]) -> str:
    """Guess something that is not a number, then too much, then what is right."""
    turn = sum(message["role"] == "assistant" for message in request["messages"])
    return ['{"number": "x"}', '{"number": 5}', '{"number": 3}'][turn]


def calculate(request: dict[str, Any]) -> dict[str, Any]:
    """Call a tool that there is not, then the right one with wrong arguments, then with right ones."""
    assert [tool["function"]["name"] for tool in request["tools"]] == ["add"]
    turn = sum(message["role"] == "assistant" for message in request["messages"])
    number = int(re.findall(r"What is (\d+)", request["messages"][0]["content"])[0])
    name, arguments = [("nope", {}), ("add", {"a": 1, "b": 1}), ("add", {"a": number, "b": 2})][turn]
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"content": None, "tool_calls": [{"id": f"c{turn}", "type": "function", "function": function}]}


EXPECTED = [("guess", guess, 0.9), ("calculator", calculate, 1.0)]


@pytest.mark.parametrize(("name", "reply", "reward"), EXPECTED)
def test_an_episode_is_played_over_the_recorded_protocol(
    name: str, reply: Any, reward: float, serve_model: Serve
) -> None:
    with Replay(name) as server:
        result = play(server.url, serve_model(reply))

    assert result.metrics["train_reward"] == pytest.approx(reward)


def test_an_episode_ends_with_its_last_step(serve_model: Serve) -> None:
    with Replay("guess") as server:
        result = play(server.url, serve_model(guess), max_steps=2)

    assert result.metrics["train_reward"] == pytest.approx(-0.1)


def test_an_environment_that_is_not_there_is_a_fault(serve_model: Serve) -> None:
    with pytest.raises(NoRewards, match=r"4 faults, none of which is the agent's failure.*cannot be reached"):
        play("http://127.0.0.1:9", serve_model(guess))


def test_a_task_is_a_seed_and_the_agent_gives_the_reward() -> None:
    made = default_registry().build("environments", {"name": "openenv", "url": "http://x"}, expected=OpenEnv)

    assert list(made.tasks(2)) == [{"seed": 0}, {"seed": 1}]
    assert not made.has_scorer
    assert pickle.loads(pickle.dumps(made.agent())).is_async()  # for runners in processes of their own


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "websockets.asyncio.client", None)

    with pytest.raises(
        ConfigError, match=r"needs the package openenv, .*\./plugins/lightning-environments\[openenv\]'"
    ):
        asyncio.run(_enter())


async def _enter() -> None:
    from lightning_environments.openenv import Session

    async with Session("http://127.0.0.1:9"):
        pass


def test_a_url_of_another_kind_is_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match="url is 'localhost:8000'; it is that of the environment's server, such as"):
        OpenEnv("localhost:8000")
