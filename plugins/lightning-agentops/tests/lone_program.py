"""A process of its own: a tracer from its import to its teardown, and what of it leaves the machine."""

import ipaddress
import json
import os
import sys

outside: list[str] = []


def watch(event: str, arguments: tuple[object, ...]) -> None:
    """Note each look-up of a name, and each connection to anything but this machine."""
    if event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        host = str(arguments[0])
    elif event in ("socket.connect", "socket.sendto") and isinstance(arguments[1], tuple):
        host = str(arguments[1][0])
    else:
        return
    try:
        inside = ipaddress.ip_address(host).is_loopback
    except ValueError:
        inside = host in ("localhost", "None")
    if not inside:
        outside.append(f"{event} {host}")


sys.addaudithook(watch)

import asyncio  # noqa: E402  # what is imported from here on is watched
import threading  # noqa: E402

import agentops  # noqa: E402
import openai  # noqa: E402
from lightning_agentops import AgentOpsTracer  # noqa: E402
from lightning_proxy.testing import FakeEngine  # noqa: E402

from lightning_core.store import InMemoryLightningStore  # noqa: E402


async def main(initialises: str) -> list[str]:
    async with FakeEngine(["ok"]) as engine:
        return await rollouts(InMemoryLightningStore(), engine, initialises)


async def rollouts(store: InMemoryLightningStore, engine: FakeEngine, initialises: str) -> list[str]:
    """Trace two rollouts with a call each; return what is recorded of them."""
    tracer, names = AgentOpsTracer(), []
    async with openai.AsyncOpenAI(base_url=engine.url, api_key="k") as client:
        with tracer.lifespan(store):
            for _ in range(2):
                begun = await store.start_rollout({})
                async with tracer.trace_context(rollout_id=begun.rollout_id, attempt_id=begun.attempt.attempt_id):
                    if initialises == "agent":
                        agentops.init()
                    await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
                names += [span.name for span in await store.query_spans(begun.rollout_id)]
    return names


if __name__ == "__main__":
    names = asyncio.run(main(sys.argv[1]))
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    told = {"outside": outside, "names": names, "threads": threads}
    print(json.dumps({**told, "files": os.listdir()}))
