"""The client of the protocol, and one that has its tasks with it."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urljoin

import httpx

from lightning_core.types import NamedResources, ResourcesUpdate, TaskInput
from lightning_legacy.names import RolloutLegacy, Task, TaskIfAny
from lightning_legacy.payloads import warn_once

logger = logging.getLogger(__name__)


class AgentLightningClient:
    """Fetches tasks and resources from a server of agentlightning 0.1 or 0.2, or from this package's, and reports.

    As there, a request that fails is logged and gives None, and polling goes on until there is a task. Coroutine
    methods ask in a thread.

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

    def poll_next_task(self) -> Task | None:
        """Wait for a task, and return it."""
        while (task := self._next_task()) is None:
            time.sleep(self.poll_interval)
        return task

    async def poll_next_task_async(self) -> Task | None:
        """Wait for a task, and return it."""
        while (task := await asyncio.to_thread(self._next_task)) is None:  # noqa: ASYNC110
            await asyncio.sleep(self.poll_interval)
        return task

    def get_resources_by_id(self, resource_id: str) -> ResourcesUpdate | None:
        """Return a version of the resources."""
        answer = self._ask("GET", f"/resources/{resource_id}")
        unknown = {"create_time": 0, "update_time": 0, "version": 1}  # 0.1 and 0.2 do not say
        return None if answer is None else ResourcesUpdate.model_validate({**unknown, **answer})

    async def get_resources_by_id_async(self, resource_id: str) -> ResourcesUpdate | None:
        """Return a version of the resources."""
        return await asyncio.to_thread(self.get_resources_by_id, resource_id)

    def get_latest_resources(self) -> ResourcesUpdate | None:
        """Return the latest version of the resources; None when there is none."""
        return self.get_resources_by_id("latest")

    async def get_latest_resources_async(self) -> ResourcesUpdate | None:
        """Return the latest version of the resources; None when there is none."""
        return await asyncio.to_thread(self.get_latest_resources)

    def post_rollout(self, rollout: RolloutLegacy) -> dict[str, Any] | None:
        """Report a rollout; return the server's answer."""
        return self._ask("POST", "/rollout", rollout.model_dump_json())

    async def post_rollout_async(self, rollout: RolloutLegacy) -> dict[str, Any] | None:
        """Report a rollout; return the server's answer."""
        return await asyncio.to_thread(self.post_rollout, rollout)

    def _next_task(self) -> Task | None:
        answer = self._ask("GET", "/task")
        task = None if answer is None else TaskIfAny.model_validate(answer).task
        self.task_count += task is not None
        return task

    def _ask(self, method: str, path: str, body: str | None = None) -> dict[str, Any] | None:
        headers = {"Content-Type": "application/json", "X-AgentLightning-Client": "true"}
        url = urljoin(self.endpoint, path)
        try:
            response = httpx.request(method, url, content=body, headers=headers, timeout=self.timeout)
            answer: dict[str, Any] = response.raise_for_status().json()
        except httpx.HTTPError as exc:
            logger.warning("lightning.legacy_request_failed: %s: %s", type(exc).__name__, exc)
            return None
        return answer


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
