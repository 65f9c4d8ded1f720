"""What the proxy costs: agents, proxy and backend in processes of their own, on the same machine; a line a figure.

A call has 1,000 prompt tokens and 200 response tokens, and is recorded in a memory store of the proxy's process. The
proxy asks for token ids and log-probabilities, so its backend answers 26 kB, and a direct call's 3. Long calls have
1,000 response tokens, 2,000 in all. CPU is that of the
proxy's process alone. Direct calls stand beside, and where the command `litellm` is on the path, LiteLLM's proxy, which
records nothing.

Streams come in two ways: a piece every 2 ms, which is what a fast engine does, and all pieces at once, which no engine
does. In the second way neither the backend nor the proxy rests, so that on two cores the agent waits for one of them to
be free before it sees the first byte, however early that was sent.
"""

import asyncio
import contextlib
import gc
import json
import multiprocessing
import os
import secrets
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
from lightning_proxy import LLMProxy
from lightning_proxy.openai_backend import OpenAIBackend

from lightning_core.store import InMemoryLightningStore

PROMPT = "word " * 1000
PROMPT_IDS = list(range(1000, 2000))
ANSWER_IDS = list(range(5000, 5200))
LONG_ANSWER_IDS = list(range(5000, 6000))
CALLS = {1: 1500, 32: 6000}
PEER_CALLS = {1: 200, 32: 600}
STREAMS = 300
PACED_STREAMS = 40
PACE_SECONDS = 0.002
PACED = "engine"
LONG_CALLS = 2000
SHORT, LONG = "whole", "long"
WARM_UP = 200


def _logprobs(ids: list[int]) -> dict[str, Any]:
    entries = [
        {"token": f"w{number}", "logprob": -0.0123456789, "bytes": [119, 49], "top_logprobs": []} for number in ids
    ]
    return {"content": entries}


def _answer(asks: bool, ids: list[int]) -> bytes:
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": "answer " * len(ids)},
        "finish_reason": "stop",
        "logprobs": _logprobs(ids) if asks else None,
        "token_ids": ids if asks else None,
    }
    usage = {"prompt_tokens": 1000, "completion_tokens": len(ids), "total_tokens": 1000 + len(ids)}
    prompt = PROMPT_IDS if asks else None
    head = {"id": "chatcmpl-ID", "object": "chat.completion", "created": 1, "model": "small"}
    return json.dumps({**head, "choices": [choice], "usage": usage, "prompt_token_ids": prompt}).encode()


def _events(asks: bool) -> list[bytes]:
    head = {"id": "chatcmpl-ID", "object": "chat.completion.chunk", "created": 1, "model": "small"}
    first = {**head, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    events: list[dict[str, Any]] = [{**first, "prompt_token_ids": PROMPT_IDS if asks else None}]
    for number in ANSWER_IDS:
        choice: dict[str, Any] = {"index": 0, "delta": {"content": "word "}, "finish_reason": None}
        if asks:
            choice |= {"token_ids": [number], "logprobs": _logprobs([number])}
        events.append({**head, "choices": [choice]})
    events.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events] + [b"data: [DONE]\n\n"]


class Backend:
    """An ASGI application that answers at once, from bytes that it has ready."""

    def __init__(self) -> None:
        self._answers = {asks: _answer(asks, ANSWER_IDS) for asks in (False, True)}
        self._long_answers = {asks: _answer(asks, LONG_ANSWER_IDS) for asks in (False, True)}
        self._events = {asks: _events(asks) for asks in (False, True)}
        self._number = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self._number += 1
        asks, identity = b"return_token_ids" in body, b"chatcmpl-%d" % self._number
        pause = PACE_SECONDS if f'"user": "{PACED}"'.encode() in body else 0.0
        is_stream = b'"stream":true' in body or b'"stream": true' in body
        kind = b"text/event-stream" if is_stream else b"application/json"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        if not is_stream:
            answers = self._long_answers if f'"user": "{LONG}"'.encode() in body else self._answers
            answer = answers[asks].replace(b"chatcmpl-ID", identity)
            await send({"type": "http.response.body", "body": answer})
            return
        for event in self._events[asks]:
            piece = event.replace(b"chatcmpl-ID", identity)
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(pause)
        await send({"type": "http.response.body", "body": b""})


def serve_backend(channel: Connection) -> None:
    """Serve the backend until the other end says something."""
    import uvloop
    from lightning_http.listener import Listener, bind

    async def run() -> None:
        bound = bind("127.0.0.1", 0)
        listener = Listener(Backend(), bound)
        listener.config.http = "httptools"  # as engines are served: the head of an answer is a write of its own
        port = bound.getsockname()[1]
        await listener.open()
        channel.send(f"http://127.0.0.1:{port}/v1")
        await asyncio.to_thread(channel.recv)
        await listener.close(seconds=1)

    uvloop.run(run())


def serve_proxy(channel: Connection) -> None:
    """Serve the proxy until the other end says something."""
    import uvloop

    async def run() -> None:
        store = InMemoryLightningStore()
        rollout = await store.start_rollout({})
        backend = OpenAIBackend(channel.recv(), return_token_ids=True)
        began = time.perf_counter()
        models = [{"model_name": "small", "backend": backend}]
        proxy = LLMProxy(model_list=models, store=store, launch_mode="asyncio", key="")
        await proxy.start()
        gc.collect()
        gc.freeze()
        gc.set_threshold(100_000, 20, 20)  # as `agl serve proxy` does
        base = proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id).get_base_url()
        channel.send((base, time.perf_counter() - began))
        while await asyncio.to_thread(channel.recv):
            await proxy.flush(rollout.rollout_id, rollout.attempt.attempt_id, end=False)
            channel.send((await store.statistics())["total_spans"])
        await proxy.stop()
        await backend.aclose()

    uvloop.run(run())


def cpu_seconds(pid: int) -> float:
    """Return what a process has used; on systems without /proc nothing."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def whole_calls(
    http: aiohttp.ClientSession, base: str, *, at_once: int, calls: int, user: str = SHORT
) -> tuple[float, list[float]]:
    """Make calls, so many at a time; return the seconds of all, and of each."""
    body = json.dumps({"model": "small", "messages": [{"role": "user", "content": PROMPT}], "user": user}).encode()
    headers = {"content-type": "application/json"}
    left, seconds = iter(range(calls)), list[float]()

    async def one() -> None:
        for _ in left:
            began = time.perf_counter()
            async with http.post(f"{base}/chat/completions", data=body, headers=headers) as response:
                await response.read()
                assert response.status == 200
            seconds.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(at_once)))
    return time.perf_counter() - began, seconds


async def streams(
    http: aiohttp.ClientSession, base: str, *, count: int, is_paced: bool
) -> tuple[list[float], list[float]]:
    """Read streams, one at a time; return the seconds to the first byte of each, and to the last."""
    body: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": PROMPT}], "stream": True}
    if is_paced:
        body["user"] = PACED
    firsts, lasts = [], []
    for _ in range(count):
        began = time.perf_counter()
        async with http.post(f"{base}/chat/completions", json=body) as response:
            await response.content.readany()
            firsts.append(time.perf_counter() - began)
            await response.read()
        lasts.append(time.perf_counter() - began)
    return firsts, lasts


def _median(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1000:.2f} ms"


async def measure(direct: str, proxied: str, proxy_pid: int) -> None:
    """Print all figures."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        for base in (direct, proxied):
            await whole_calls(http, base, at_once=8, calls=WARM_UP)
        for at_once, calls, user in (*((each, CALLS[each], SHORT) for each in CALLS), (32, LONG_CALLS, LONG)):
            medians = {}
            for name, base in (("direct", direct), ("proxy", proxied)):
                before = cpu_seconds(proxy_pid)
                took, seconds = await whole_calls(http, base, at_once=at_once, calls=calls, user=user)
                used = (cpu_seconds(proxy_pid) - before) * 1000 / calls
                medians[name] = statistics.median(seconds) * 1000
                cost = f", proxy CPU {used:.2f} ms a call" if name == "proxy" else ""
                print(f"{user}, {at_once} at a time, {name}: {calls / took:.0f} calls/s, p50 {_median(seconds)}{cost}")
            print(f"{user}, {at_once} at a time: {medians['proxy'] - medians['direct']:.2f} ms added at the median")
        for way, count in (("2 ms apart", PACED_STREAMS), ("at once", STREAMS)):
            medians = {}
            for name, base in (("direct", direct), ("proxy", proxied)):
                before = cpu_seconds(proxy_pid)
                firsts, lasts = await streams(http, base, count=count, is_paced=count == PACED_STREAMS)
                used = (cpu_seconds(proxy_pid) - before) * 1000 / count
                medians[name] = statistics.median(firsts) * 1000
                cost = f", proxy CPU {used:.2f} ms a stream" if name == "proxy" else ""
                print(f"200 pieces {way}, {name}: first byte p50 {_median(firsts)}, last {_median(lasts)}{cost}")
            print(f"200 pieces {way}: first byte {medians['proxy'] - medians['direct']:.2f} ms later at the median")


@contextmanager
def litellm_proxy(direct: str) -> Iterator[tuple[str, str, int] | None]:
    """Serve the same backend through LiteLLM's proxy; give its base URL, its key and its process, or None."""
    command = shutil.which("litellm")
    if command is None:
        yield None
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    key = f"sk-{secrets.token_hex(8)}"
    params = {"model": "hosted_vllm/small", "api_base": direct, "api_key": "none"}
    config = {"model_list": [{"model_name": "small", "litellm_params": params}]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(json.dumps(config), encoding="utf-8")
        environment = {**os.environ, "LITELLM_MASTER_KEY": key, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen(
                [command, "--config", str(path), "--host", "127.0.0.1", "--port", str(port)],
                env=environment,
                stdout=log,
                stderr=log,
            )
        try:
            began = time.perf_counter()
            while process.poll() is None and time.perf_counter() - began < 120:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
                time.sleep(0.1)
            print(f"start of LiteLLM's proxy: {time.perf_counter() - began:.1f} s")
            yield f"http://127.0.0.1:{port}/v1", key, process.pid
        finally:
            process.terminate()
            process.wait(20)


async def measure_peer(base: str, key: str, pid: int) -> None:
    """Print the figures of LiteLLM's proxy."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), headers={"authorization": f"Bearer {key}"}
    ) as http:
        await whole_calls(http, base, at_once=8, calls=WARM_UP // 4)
        for at_once, calls in PEER_CALLS.items():
            before = cpu_seconds(pid)
            took, seconds = await whole_calls(http, base, at_once=at_once, calls=calls)
            used = (cpu_seconds(pid) - before) * 1000 / calls
            figures = f"{calls / took:.0f} calls/s, p50 {_median(seconds)}, proxy CPU {used:.2f} ms a call"
            print(f"whole, {at_once} at a time, LiteLLM's proxy: {figures}")


def main() -> None:
    """Start both servers, and measure."""
    context = multiprocessing.get_context("spawn")
    backend_end, backend_far = context.Pipe()
    proxy_end, proxy_far = context.Pipe()
    backend = context.Process(target=serve_backend, args=(backend_far,), daemon=True)
    proxy = context.Process(target=serve_proxy, args=(proxy_far,), daemon=True)
    backend.start()
    proxy.start()
    direct = backend_end.recv()
    proxy_end.send(direct)
    proxied, start_seconds = proxy_end.recv()
    print(f"start of the proxy: {start_seconds:.3f} s")
    assert proxy.pid is not None
    asyncio.run(measure(direct, proxied, proxy.pid))
    proxy_end.send(True)
    calls = WARM_UP + sum(CALLS.values()) + LONG_CALLS + STREAMS + PACED_STREAMS
    print(f"recorded: {proxy_end.recv()} of {calls} calls")
    proxy_end.send(False)
    with litellm_proxy(direct) as peer:
        if peer is not None:
            asyncio.run(measure_peer(*peer))
    backend_end.send(False)
    proxy.join()
    backend.join()


if __name__ == "__main__":
    main()
