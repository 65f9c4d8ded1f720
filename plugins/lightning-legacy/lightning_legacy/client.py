"""The client of the protocol, and one that has its tasks with it."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urljoin

import httpx

from lightning_core.compat.names import RolloutLegacy, Task, TaskIfAny
from lightning_core.types import NamedResources, ResourcesUpdate, TaskInput
from lightning_legacy.payloads import warn_once

logger = logging.getLogger(__name__)


class AgentLightningClient:
    """Fetches tasks and resources from a server of agentlightning 0.1 or 0.2, or from this package's, and reports.

    As there, a request that fails is logged and gives None, and polling goes on until there is a task. Resources are
    fetched once for each id.

    Args:
        endpoint: The server's URL.
        poll_interval: How many seconds to wait when there is no task.
        timeout: How many seconds a request may take.
    """

    def __init__(self, endpoint: str, poll_interval: float = 5.0, timeout: float = 10.0) -> None:
        warn_once()
        self.endpoint = endpoint
        self.poll_interval = poll_interval
        self.timeout = timeout
        self.task_count = 0
        """How many tasks were fetched."""
        self._known: dict[str, ResourcesUpdate] = {}

    def poll_next_task(self) -> Task | None:
        """Wait for a task, and return it."""
        while (task := self._read_task(self._ask("GET", "/task"))) is None:
            time.sleep(self.poll_interval)
        return task

    async def poll_next_task_async(self) -> Task | None:
        """Wait for a task, and return it."""
        while (task := self._read_task(await self._ask_async("GET", "/task"))) is None:  # noqa: ASYNC110
            await asyncio.sleep(self.poll_interval)
        return task

    def get_resources_by_id(self, resource_id: str) -> ResourcesUpdate | None:
        """Return a version of the resources."""
        return self._known.get(resource_id) or self._read_resources(self._ask("GET", f"/resources/{resource_id}"))

    async def get_resources_by_id_async(self, resource_id: str) -> ResourcesUpdate | None:
        """Return a version of the resources."""
        return self._known.get(resource_id) or self._read_resources(
            await self._ask_async("GET", f"/resources/{resource_id}")
        )

    def get_latest_resources(self) -> ResourcesUpdate | None:
        """Return the latest version of the resources; None when there is none."""
        return self._read_resources(self._ask("GET", "/resources/latest"))

    async def get_latest_resources_async(self) -> ResourcesUpdate | None:
        """Return the latest version of the resources; None when there is none."""
        return self._read_resources(await self._ask_async("GET", "/resources/latest"))

    def post_rollout(self, rollout: RolloutLegacy) -> dict[str, Any] | None:
        """Report a rollout; return the server's answer."""
        return self._ask("POST", "/rollout", rollout.model_dump_json())

    async def post_rollout_async(self, rollout: RolloutLegacy) -> dict[str, Any] | None:
        """Report a rollout; return the server's answer."""
        return await self._ask_async("POST", "/rollout", rollout.model_dump_json())

    def _ask(self, method: str, path: str, body: str | None = None) -> dict[str, Any] | None:
        try:
            return _read(httpx.request(method, self._url(path), content=body, headers=_HEADERS, timeout=self.timeout))
        except httpx.HTTPError as exc:
            _log_failure(exc)
            return None

    async def _ask_async(self, method: str, path: str, body: str | None = None) -> dict[str, Any] | None:
        try:
            async with httpx.AsyncClient(timeout=self.timeout) as client:
                return _read(await client.request(method, self._url(path), content=body, headers=_HEADERS))
        except httpx.HTTPError as exc:
            _log_failure(exc)
            return None

    def _url(self, path: str) -> str:
        return urljoin(self.endpoint, path)

    def _read_task(self, answer: dict[str, Any] | None) -> Task | None:
        task = None if answer is None else TaskIfAny.model_validate(answer).task
        self.task_count += task is not None
        return task

    def _read_resources(self, answer: dict[str, Any] | None) -> ResourcesUpdate | None:
        if answer is None:
            return None
        unknown = {"create_time": 0, "update_time": 0, "version": 1}  # 0.1 and 0.2 do not say
        update = ResourcesUpdate.model_validate({**unknown, **answer})
        self._known[update.resources_id] = update
        return update


class DevTaskLoader(AgentLightningClient):
    """Gives the tasks that it has, over and over, and keeps what is reported: to try an agent without a server.

    Args:
        tasks: The tasks, or their inputs.
        resources: What all of them get.
        **options: Those of `AgentLightningClient`, without effect.

    Raises:
        ValueError: Without a task, or when some are `Task`s and others inputs.
    """

    def __init__(
        self,
        tasks: Sequence[TaskInput] | Sequence[Task],
        resources: NamedResources | ResourcesUpdate,
        **options: Any,
    ) -> None:
        super().__init__("local://", **options)
        if not tasks:
            raise ValueError("DevTaskLoader has no tasks; give at least one")
        if len({isinstance(task, Task) for task in tasks}) > 1:
            raise ValueError("tasks has Task objects and inputs; give one kind")
        if not isinstance(resources, ResourcesUpdate):
            now = time.time()
            resources = ResourcesUpdate(
                resources_id="local", create_time=now, update_time=now, version=1, resources=resources
            )
        self._resources = resources
        self._tasks = [
            task
            if isinstance(task, Task)
            else Task(rollout_id=f"local_task_{number:03d}", input=task, resources_id=resources.resources_id)
            for number, task in enumerate(tasks, 1)
        ]
        self.rollouts: list[RolloutLegacy] = []
        """What was reported, oldest first."""

    def _ask(self, method: str, path: str, body: str | None = None) -> dict[str, Any] | None:
        if path == "/task":
            task = self._tasks[self.task_count % len(self._tasks)]
            return TaskIfAny(is_available=True, task=task).model_dump()
        if body is not None:
            self.rollouts.append(rollout := RolloutLegacy.model_validate_json(body))
            return {"status": "received", "rollout_id": rollout.rollout_id}
        resource_id = path.removeprefix("/resources/")
        if resource_id not in ("latest", self._resources.resources_id):
            raise ValueError(f"there are no resources {resource_id!r}; there are {self._resources.resources_id!r}")
        return self._resources.model_dump()

    async def _ask_async(self, method: str, path: str, body: str | None = None) -> dict[str, Any] | None:
        return self._ask(method, path, body)


_HEADERS = {"Content-Type": "application/json", "X-AgentLightning-Client": "true"}


def _read(response: httpx.Response) -> dict[str, Any]:
    response.raise_for_status()
    answer: dict[str, Any] = response.json()
    return answer


def _log_failure(error: httpx.HTTPError) -> None:
    logger.warning("lightning.legacy_request_failed: %s: %s", type(error).__name__, error)
