"""A run with the tracer, started by test_offline.py: prints where it tried to connect outside of this machine."""

# ruff: noqa: E402  # whatever is imported is watched

import atexit
import os
import sys
from typing import Any

ASKED = {"socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname"}
outside: list[str] = []


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ASKED:
        target = arguments[1] if event in ("socket.connect", "socket.sendto", "socket.sendmsg") else arguments[0]
        host = target[0] if isinstance(target, tuple) else target
        if host not in (None, "", "127.0.0.1", "::1", "localhost"):
            outside.append(f"{event} {target}")


sys.addaudithook(watch)
# The first to be registered is the last to run: after whatever libraries do at exit.
atexit.register(lambda: os.write(1, f"outside: {outside}\n".encode()))

if "weave-first" in sys.argv:
    import weave  # noqa: F401  # as an agent's module does, before there is any tracer

if "control" in sys.argv:
    import socket

    try:
        socket.getaddrinfo("outside.invalid", 80)
    except OSError as exc:
        print("control:", type(exc).__name__)
    sys.exit()

import asyncio
import threading

import openai
from lightning_proxy.testing import FakeEngine

from lightning_core import InMemoryLightningStore, Trainer, rollout


async def main() -> None:
    async with FakeEngine(["Paris."]) as engine, openai.AsyncOpenAI(base_url=engine.url, api_key="k") as client:

        @rollout
        async def agent(task: int) -> float:
            import weave

            weave.init("my-team/my-project")  # what a user of Weave's agent does
            answer = await weave.op(ask)(task)
            weave.finish()
            if task == 1:
                weave.op(fail)()
            return float(answer == "Paris.")

        async def ask(task: int) -> str | None:
            messages: Any = [{"role": "user", "content": f"Where? {task}"}]
            answer = await client.chat.completions.create(model="small", messages=messages)
            return answer.choices[0].message.content

        def fail() -> None:
            raise ValueError("no good")

        store = InMemoryLightningStore()
        result = await Trainer(algorithm="baseline", store=store, tracer="weave", n_runners=4).fit_async(
            agent, list(range(6))
        )
        spans = [span for one in await store.query_rollouts() for span in await store.query_spans(one.rollout_id)]
        print("metrics:", result.metrics)
        print("spans:", sorted({span.name for span in spans}), sum(span.name == "ask" for span in spans))


asyncio.run(main())
print("threads:", [thread.name for thread in threading.enumerate()])
