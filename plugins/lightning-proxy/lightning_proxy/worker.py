"""What happens in a worker of the proxy."""

import asyncio
import functools
import os
import pickle
import signal
import socket
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from lightning_http.auth import Keys
from lightning_http.channel import Channel, ChannelClosed

from lightning_core.registry import default_registry
from lightning_core.store.clock import SystemClock
from lightning_proxy.control import Links, forward_control
from lightning_proxy.owner import Owner
from lightning_proxy.replicas import MAX_ATTEMPTS, PlacementRequest
from lightning_proxy.request import Refused
from lightning_proxy.service import ProxyService, collect_rarely
from lightning_proxy.workers import ERRORS, State, Task


def main() -> None:
    """Answer calls on the socket whose descriptor is the first argument, until the other end of the second closes."""
    # Ctrl-C is for the process that started this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listening, ours = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    import uvloop

    uvloop.run(_work(listening, ours))


class Worker:
    """One worker, once it has its task."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._service: ProxyService | None = None
        self._task: Task | None = None
        self._channel = Channel(self._take, self._answer, ERRORS)
        self._shared = _Shared(self._channel)

    async def run(self, ours: socket.socket) -> None:
        """Work until the process that started this one closes its end, or dies."""
        await self._channel.open(ours)
        try:
            await asyncio.wait((self._channel.closed,))
        finally:
            await self._stop()

    async def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if name == "begin":
            return await self._begin(*arguments)
        if name == "stop":
            return await self._stop()
        service = self._service
        assert service is not None
        match name:
            case "adopt":
                return await self._adopt(service, *arguments)
            case "listen":
                return await service.listen(self._listening)
            case "check":
                return service.check_model_list(*arguments)
            case "update_model_list":
                return await self._update(service, *arguments)
            case _:
                return await getattr(service, name)(*arguments)

    def _take(self, name: str, arguments: tuple[Any, ...]) -> None:
        assert name == "moved"
        self._shared.forget(*arguments)

    async def _begin(self, packed: bytes, path: Sequence[str], state: State) -> None:
        sys.path[:] = path  # before a class of the program's own is unpickled
        task: Task = pickle.loads(packed)
        if task.store is not None:
            await task.store.statistics()  # its run is known from now on
        service = ProxyService(
            task.store,
            keys=Keys(task.key),
            settings=task.settings,
            capture=task.capture,
            budget=None,
            registry=default_registry(),
            clock=SystemClock(),
            links=Links(
                control=forward_control(self._channel.ask),
                spending=self._shared if task.has_limits else None,
                affinity=self._shared,
                on_attempt=functools.partial(self._channel.tell, "attempt"),
            ),
        )
        await self._adopt(service, state)
        self._task, self._service = task, service
        collect_rarely()

    async def _adopt(self, service: ProxyService, state: State) -> None:
        await self._update(service, state.model_list, state.list_version)
        await service.set_weight_version(state.weight_version)
        await (service.pause(state.pause_seconds) if state.is_paused else service.resume())
        for value, owner in state.bound.items():
            await service.bind(value, owner)

    async def _update(self, service: ProxyService, model_list: Sequence[Mapping[str, Any]], version: int) -> None:
        await service.update_model_list(model_list)
        service.replicas.list_version = version

    async def _stop(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            await service.stop()
        if self._task is not None and self._task.store is not None:
            await self._task.store.aclose()


async def _work(listening: socket.socket, ours: socket.socket) -> None:
    await Worker(listening).run(ours)


class _Shared:
    """What calls used and the places of attempts, which the process that started this one keeps."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._places: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()
        """By model and attempt: the version of the list, and the replica's number there."""

    def forget(self, model: str, attempt: str) -> None:
        """Ask anew where an attempt's calls go: another worker could not reach the replica that they went to."""
        self._places.pop((model, attempt), None)

    async def start_call(self, attempt: Owner | None) -> None:
        try:
            await self._channel.ask("start_call", attempt)
        except ChannelClosed as exc:
            raise Refused(503, "proxy_stopped", "the proxy is about to stop", retry_after=1.0) from exc

    def end_call(self, attempt: Owner | None, *, tokens: int, usd: float | None) -> None:
        self._channel.tell("end_call", attempt, tokens, usd)

    async def place(self, request: PlacementRequest) -> int | None:
        key = (request.model, request.attempt)
        version, kept = self._places.get(key, (0, 0))
        if version == request.list_version and kept in request.up:
            return kept
        try:
            number: int | None = await self._channel.ask("place", request)
        except ChannelClosed:  # this worker is about to stop
            return None
        if number is not None:
            self._places[key] = request.list_version, number
            if len(self._places) > MAX_ATTEMPTS:
                self._places.popitem(last=False)
        return number

    async def keep_response(self, list_version: int, owner: Owner | None, response_id: str, number: int) -> None:
        with suppress(ChannelClosed):  # this worker is about to stop
            await self._channel.ask("keep_response", list_version, owner, response_id, number)

    async def of_response(self, list_version: int, owner: Owner | None, response_id: str) -> int | None:
        try:
            number: int | None = await self._channel.ask("of_response", list_version, owner, response_id)
        except ChannelClosed:  # this worker is about to stop
            return None
        return number


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # a backend's library may have left threads that do not end
