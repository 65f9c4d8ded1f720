"""The server of the protocol: agents fetch tasks from a store by it, and send back what came of them."""

import asyncio
import base64
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from lightning_http.body import BodyRefused, ConnectionLimits, body_of
from lightning_http.listener import Listener, bind
from lightning_http.web_pages import PAGE_HEADERS, require_key, require_local, require_same_site
from lightning_http.wire import from_any_json
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lightning_core.concurrency import Startable
from lightning_core.errors import (
    AccessDenied,
    Fault,
    InvalidRequest,
    InvalidResult,
    RunEnded,
    StoreError,
    StoreUnavailable,
)
from lightning_core.runner.calls import of_attempt, take_in_calls
from lightning_core.runner.heartbeats import Assignment, Heartbeats
from lightning_core.runner.outcome import Outcome, check_rewards, give_back, report
from lightning_core.store import InMemoryLightningStore, LightningStore
from lightning_core.types import (
    AttemptedRollout,
    NamedResources,
    ProxyLLM,
    ResourcesUpdate,
    RolloutMode,
)
from lightning_legacy.names import GenericResponse, RolloutLegacy, TaskIfAny
from lightning_legacy.payloads import PAYLOAD, read_rollout, spans_of, task_of, warn_once

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 10.0
STOP_SECONDS = 5.0
NO_RESOURCES = "none"
"""The id of the empty bundle, for rollouts that have no resources."""


@dataclass
class _Claim:
    """A rollout that an agent has fetched and not sent back."""

    rollout: AttemptedRollout
    resources: ResourcesUpdate
    """As the store has them, with the attempt's key."""
    resources_id: str
    """By this the agent asks for them."""
    holding: asyncio.Task[None] = field(init=False)
    """Keeps its lease."""

    def for_agent(self) -> ResourcesUpdate:
        """Return the resources with plain endpoints, whose URLs say which attempt calls: 0.1 knows no others."""
        plain = {
            name: resource.with_attempted_rollout(self.rollout) if isinstance(resource, ProxyLLM) else resource
            for name, resource in self.resources.resources.items()
        }
        return self.resources.model_copy(update={"resources_id": self.resources_id, "resources": plain})


class AgentLightningServer(Startable):
    """Serves the protocol of agentlightning 0.1 and 0.2 over a store.

    Agents claim rollouts at `/task`, fetch what they need at `/resources/...`, and report at `/rollout`. For the store
    the server is one worker: its heartbeats hold the claims, which are given back when it stops. The protocol has no
    keys; `key` is asked for as the password of HTTP's basic authentication, which is a part of the URL that agents are
    given: `http://agent:KEY@host:port`.

    The methods are for algorithms that were written for it. Those of today use the store.

    Args:
        host: The address to listen on. One that other machines can reach demands a key.
        port: The port; 0 lets the system choose one.
        task_timeout_seconds: How long an agent may take for a task. Then the rollout is queued again, as after any
            fault: at most three times.
        store: Where rollouts come from; None for one in memory. It is not closed by the server.
        key: The password.

    Raises:
        ConfigError: When the host demands a key and there is none.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 8000,
        task_timeout_seconds: float = 300.0,
        *,
        store: LightningStore | None = None,
        key: str | None = None,
    ) -> None:
        warn_once()
        require_key(host, key, what="the server", give="key=")
        self.host = host
        self.port = port
        self.store = InMemoryLightningStore() if store is None else store
        self.no_more = asyncio.Event()
        """Set when the run has ended, or its store has gone: there are no more tasks."""
        self._key = key
        self._task_timeout_seconds = task_timeout_seconds
        self._claims: dict[str, _Claim] = {}
        self._holding: set[asyncio.Task[None]] = set()
        self._queued: dict[str, None] = {}  # a set that keeps its order
        self._running: AsyncExitStack | None = None
        self._heartbeats: Heartbeats | None = None

    @property
    def endpoint(self) -> str:
        """Where agents find it, without the key; known once it is started if the system chooses the port."""
        return f"http://{self.host}:{self.port}"

    async def start(self) -> None:
        """Listen in this event loop; return when requests are answered.

        Raises:
            ConfigError: When the port cannot be had.
        """
        async with AsyncExitStack() as stack:
            heartbeats = Heartbeats(f"legacy-{secrets.token_hex(4)}", self.store, interval_seconds=HEARTBEAT_SECONDS)
            await stack.enter_async_context(heartbeats.beating())
            stack.push_async_callback(self._release)
            listener = Listener(self._application(), bound := bind(self.host, self.port), _LIMITS)
            stack.push_async_callback(listener.close, seconds=STOP_SECONDS)
            self._heartbeats = heartbeats
            self.port = bound.getsockname()[1]
            await listener.open()
            self._running = stack.pop_all()

    async def stop(self) -> None:
        """Answer the requests under way, give back what agents still have, and stop. Idempotent."""
        running, self._running = self._running, None
        if running is not None:
            await running.aclose()

    # For algorithms of 0.2

    async def queue_task(
        self,
        sample: Any,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Enqueue a rollout, and return its id."""
        rollout = await self.store.enqueue_rollout(sample, mode=mode, resources_id=resources_id, metadata=metadata)
        self._queued[rollout.rollout_id] = None
        return rollout.rollout_id

    async def update_resources(self, resources: NamedResources) -> str:
        """Add a version of the resources, which becomes the latest one, and return its id."""
        return (await self.store.add_resources(resources)).resources_id

    async def get_completed_rollout(self, rollout_id: str) -> RolloutLegacy | None:
        """Return a rollout that was queued here and has ended; None where it has not, or was returned before."""
        return await self.poll_completed_rollout(rollout_id, 0)

    async def poll_completed_rollout(self, rollout_id: str, timeout: float | None = None) -> RolloutLegacy | None:
        """Wait for a rollout that was queued here, for so many seconds; None for no limit."""
        ended = await self._ended([rollout_id], timeout)
        return ended[0] if ended else None

    async def retrieve_completed_rollouts(self) -> list[RolloutLegacy]:
        """Return every rollout that was queued here, has ended, and was not returned before."""
        return await self._ended(list(self._queued), 0)

    async def _ended(self, rollout_ids: list[str], timeout: float | None) -> list[RolloutLegacy]:
        queued = [rollout_id for rollout_id in rollout_ids if rollout_id in self._queued]
        ended = await self.store.wait_for_rollouts(rollout_ids=queued, timeout=timeout)
        for rollout in ended:
            self._queued.pop(rollout.rollout_id, None)
        return [await read_rollout(self.store, rollout) for rollout in ended]

    # For agents

    def _application(self) -> Starlette:
        routes = (
            ("/task", "GET", self._give_task),
            ("/resources/{resources_id}", "GET", self._give_resources),
            ("/rollout", "POST", self._take_rollout),
        )
        return Starlette(routes=[Route(path, self._guarded(answer), methods=[verb]) for path, verb, answer in routes])

    def _guarded(self, answer: Callable[[Request], Awaitable[BaseModel]]) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            headers = {name: request.headers[name] for name in PAGE_HEADERS if name in request.headers}
            try:
                require_same_site("POST", headers)  # whatever the method: GET /task claims
                if self._key is None:
                    require_local(headers)
                elif not _has_password(request.headers.get("authorization", ""), self._key):
                    return _refused(401, "this server wants its key, as in http://agent:KEY@host:port")
                return Response((await answer(request)).model_dump_json(), media_type="application/json")
            except AccessDenied as exc:
                return _refused(403, str(exc))
            except BodyRefused as exc:
                return _refused(exc.status, str(exc))
            except (ValidationError, InvalidRequest) as exc:
                logger.warning("lightning.legacy_request_refused path=%s: %s", request.url.path, exc)
                return _refused(422, str(exc))
            except LookupError as exc:
                return _refused(404, str(exc.args[0]))
            except (Fault, StoreError) as exc:
                logger.warning("lightning.legacy_request_failed path=%s: %s", request.url.path, exc)
                return _refused(503, str(exc))

        return handle

    async def _give_task(self, request: Request) -> TaskIfAny:
        assert self._heartbeats is not None
        try:
            rollout = await self.store.dequeue_rollout(self._heartbeats.worker_id)
        except RunEnded:
            self.no_more.set()
            rollout = None
        except StoreUnavailable:
            self.no_more.set()
            raise
        if rollout is None:
            return TaskIfAny(is_available=False)
        try:
            resources = await self._resources(rollout)
        except (Fault, StoreError) as exc:
            await give_back(self.store, rollout, may_requeue=True, reason=str(exc))
            raise
        is_own = any(isinstance(resource, ProxyLLM) for resource in resources.resources.values())
        own_id = f"{resources.resources_id}.{rollout.attempt.attempt_id}"  # clients keep resources by their ids
        claim = _Claim(rollout, resources, own_id if is_own else resources.resources_id)
        self._claims[rollout.rollout_id] = claim
        claim.holding = asyncio.create_task(self._hold(claim), name=f"claim of {rollout.rollout_id}")
        self._holding.add(claim.holding)
        claim.holding.add_done_callback(self._holding.discard)
        return TaskIfAny(is_available=True, task=task_of(rollout, claim.resources_id))

    async def _resources(self, rollout: AttemptedRollout) -> ResourcesUpdate:
        if rollout.resources_id is None:
            return _NOTHING
        update = await self.store.get_resources_by_id(rollout.resources_id)
        if update is None:
            raise Fault(f"the resources {rollout.resources_id} of rollout {rollout.rollout_id} are not there")
        key = self.store.attempt_key(rollout.attempt)
        return update.model_copy(update={"resources": of_attempt(update.resources, rollout.attempt, key)})

    async def _give_resources(self, request: Request) -> ResourcesUpdate:
        resources_id = request.path_params["resources_id"]
        for claim in self._claims.values():
            if claim.resources_id == resources_id:
                return claim.for_agent()
        is_latest = resources_id == "latest"
        update = await (
            self.store.get_latest_resources() if is_latest else self.store.get_resources_by_id(resources_id)
        )
        if update is None:
            raise LookupError("no resources have been set" if is_latest else f"there are no resources {resources_id!r}")
        return update

    async def _take_rollout(self, request: Request) -> GenericResponse:
        try:
            sent = from_any_json(await body_of(request, _LIMITS.max_body_bytes))
            rollout_id = str(sent["rollout_id"])
        except (ValueError, KeyError, TypeError) as exc:
            raise InvalidRequest(f"the body is no rollout: {type(exc).__name__}: {exc}") from exc
        claim = self._claims.pop(rollout_id, None)
        if claim is None:
            raise LookupError(
                f"rollout {rollout_id!r} is not claimed here: it is unknown, was reported before, or was taken "
                f"back after {self._task_timeout_seconds:g} s"
            )
        try:
            await self._report(claim, sent)
        except StoreError as exc:  # agents do not send it again
            await give_back(self.store, claim.rollout, may_requeue=True, reason=f"its outcome was not stored: {exc}")
            raise
        finally:
            claim.holding.cancel()
        return GenericResponse(status="ok", message=f"Rollout {rollout_id} received and stored.")

    async def _report(self, claim: _Claim, sent: object) -> None:
        rollout, outcome = claim.rollout, Outcome()
        rollout_id, attempt_id = rollout.rollout_id, rollout.attempt.attempt_id
        try:
            payload = RolloutLegacy.model_validate(sent)
            spans = spans_of(payload, rollout_id, attempt_id)
            check_rewards(spans)
            outcome.spans = list(await self.store.add_many_spans(spans))
            if rest := payload.model_dump(mode="json", include={"logs", "metadata"}, exclude_defaults=True):
                await self.store.update_attempt(rollout_id, attempt_id, add_metadata={PAYLOAD: rest})
        except (InvalidRequest, InvalidResult, ValueError) as exc:  # what the agent sent
            outcome.end_with(exc.with_traceback(None))  # it was not raised in the agent
        try:
            await take_in_calls(self.store, claim.resources.resources, rollout, outcome, end=True)
        except Fault as exc:
            outcome.end_with(exc)
        await report(self.store, rollout, outcome, may_requeue=True)

    async def _hold(self, claim: _Claim) -> None:
        """Keep the lease of a claim until this is cancelled, or the agent has had its time."""
        assert self._heartbeats is not None
        reason = "the server of its agent was stopped"
        with self._heartbeats.working_on(Assignment(claim.rollout, self.store)):
            try:
                await asyncio.sleep(self._task_timeout_seconds)
                reason = f"its agent sent nothing for {self._task_timeout_seconds:g} s"
            finally:
                # It may have been reported; and another attempt of the rollout may have been claimed since.
                if self._claims.get(claim.rollout.rollout_id) is claim:
                    del self._claims[claim.rollout.rollout_id]
                    await give_back(self.store, claim.rollout, may_requeue=True, reason=reason)

    async def _release(self) -> None:
        for holding in self._holding:
            holding.cancel()
        await asyncio.gather(*self._holding, return_exceptions=True)


_LIMITS = ConnectionLimits()
_NOTHING = ResourcesUpdate(resources_id=NO_RESOURCES, create_time=0, update_time=0, version=1, resources={})


def _has_password(authorization: str, key: str) -> bool:
    scheme, _, packed = authorization.partition(" ")
    try:
        given = base64.b64decode(packed, validate=True).partition(b":")[2]
    except ValueError:
        return False
    return scheme.lower() == "basic" and hmac.compare_digest(given, key.encode())


def _refused(status: int, detail: str) -> Response:
    return JSONResponse({"detail": detail}, status_code=status)
