"""The live page, and what it asks for: small answers in JSON, and a stream of what changes."""

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import BaseModel, Field, ValidationError
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from lightning_core.errors import AccessDenied, InvalidRequest, NotFound, RunFolderError, StoreError, first_fault
from lightning_viewer.report import page_of, policy_of

if TYPE_CHECKING:
    from lightning_http.auth import Keys
    from starlette.types import ASGIApp

    from lightning_viewer.live import Live

PREFIX = "/ui"
"""Where the data is; the page itself is at `/`, and has none."""

KEPT_LIVES = 8
"""For how many runs of one store's server it is kept what is known of them."""

FindLive = Callable[[Request], "Live"]


def live_routes(find: FindLive, require_owner: Callable[[Request], None]) -> list[BaseRoute]:
    """Return the routes of the page and of its data.

    Args:
        find: Returns what a request is about.
        require_owner: Raises `AccessDenied` for a caller who may read and not act.
    """
    # Imported with the first request: a server that nobody looks at does without.

    async def page(request: Request) -> Response:
        text = page_of(None, title="Lightning Core")
        headers = {"content-security-policy": policy_of(is_live=True) + "; frame-ancestors 'none'"}
        headers |= {"cache-control": "no-cache", "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
        return HTMLResponse(text, headers=headers)

    def answer(read: Callable[["Live", Request], Awaitable[Any]]) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                value = await read(find(request), request)
            except RunFolderError as exc:
                raise NotFound(str(exc)) from exc
            return await asyncio.to_thread(_answer, value)

        return endpoint

    async def act(live: "Live", request: Request) -> Any:
        from lightning_viewer.live import Action

        require_owner(request)
        if not live.can_act:
            raise AccessDenied("this page shows a copy of the run's store, so it changes nothing")
        action = request.path_params["action"]
        if action not in get_args(Action):
            raise InvalidRequest(f"no action {action!r}; there are: {', '.join(get_args(Action))}")
        await live.act(request.path_params["rollout_id"], action)
        return await live.rollout(request.path_params["rollout_id"])

    async def events(request: Request) -> Response:
        after = _asked(_Start, request).after
        return StreamingResponse(
            _as_events(find(request).changes(after)),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    return [
        Route("/", page),
        Route(PREFIX + "/run", answer(lambda live, _: live.summary())),
        Route(PREFIX + "/rollouts", answer(_rollouts)),
        Route(PREFIX + "/rollouts/{rollout_id}", answer(lambda live, r: live.rollout(r.path_params["rollout_id"]))),
        Route(PREFIX + "/rollouts/{rollout_id}/trace", answer(_trace)),
        Route(PREFIX + "/rollouts/{rollout_id}/{action}", answer(act), methods=["POST"]),
        Route(PREFIX + "/samples", answer(_samples)),
        Route(PREFIX + "/runs", answer(_runs)),
        Route(PREFIX + "/compare", answer(_compare)),
        Route(PREFIX + "/workers", answer(lambda live, _: live.workers())),
        Route(PREFIX + "/events", events),
    ]


def store_pages() -> list[BaseRoute]:
    """Return the routes for a store's server: the component of the kind `pages`."""
    known: OrderedDict[tuple[asyncio.Event, str], tuple[Live, asyncio.Task[None]]] = OrderedDict()

    async def end(key: tuple[asyncio.Event, str], live: "Live") -> None:
        """Forget it and its server when that stops."""
        try:
            await key[0].wait()
        finally:
            await live.aclose()
            if key in known and known[key][0] is live:
                del known[key]

    def find(request: Request) -> "Live":
        from lightning_viewer.live import Live

        _require(request, "RUNNER")
        call = request.state.call
        key = (call.service.closing, call.store.run_id)
        live, ending = known.pop(key, (None, None))
        if live is None or ending is None or not live.is_of(call.store):
            if ending is not None:
                ending.cancel()
            live = Live(call.store, closing=call.service.closing)
            ending = asyncio.create_task(end(key, live), name="end of a live page")
        known[key] = live, ending
        while len(known) > KEPT_LIVES:
            known.popitem(last=False)[1][1].cancel()
        return live

    return live_routes(find, lambda request: _require(request, "ALGORITHM"))


def page_app(live: "Live", keys: "Keys") -> "ASGIApp":
    """Return the application of `agl ui`: the live page of one run, behind the checks of a store's server.

    Args:
        live: The run.
        keys: Who may look and act; without a key everybody on this machine.
    """
    from lightning_http.call import RequireKey, answer_error
    from lightning_http.messages import OPEN_PATHS
    from starlette.applications import Starlette

    async def answer(request: Request, exc: Exception) -> Response:
        return answer_error(exc)

    routes = live_routes(lambda request: live, lambda request: None)
    app = Starlette(routes=routes, exception_handlers={Exception: answer, StoreError: answer})
    return RequireKey(app, keys, OPEN_PATHS)


def _require(request: Request, role: str) -> None:
    from lightning_http.auth import Role  # it is that package's server that asks

    if request.state.call.identity.role < Role[role]:
        raise AccessDenied(f"this key cannot do that; it takes the key of {role.lower()}s")


# What is asked for


class _Start(BaseModel):
    """Where an answer begins: behind so many spans, or after a revision."""

    offset: int = Field(default=0, ge=0)
    after: int = 0


class _Versions(BaseModel):
    """The numbers of two versions, from 0."""

    before: int
    after: int


Asked = TypeVar("Asked", bound=BaseModel)


def _asked(kind: type[Asked], request: Request) -> Asked:
    """Return what a request asks for.

    Raises:
        InvalidRequest: When it is something else; says what.
    """
    try:
        return kind.model_validate(dict(request.query_params))
    except ValidationError as exc:
        raise InvalidRequest(first_fault(exc, shows_input=True)) from exc


async def _rollouts(live: "Live", request: Request) -> Any:
    from lightning_viewer.aggregates import Question

    return (await live.known()).page(_asked(Question, request))


async def _trace(live: "Live", request: Request) -> Any:
    from lightning_viewer.traces import read_trace

    rollout_id = request.path_params["rollout_id"]
    async with live.reading() as store:
        if await store.get_rollout_by_id(rollout_id) is None:
            raise NotFound(f"run {store.run_id} has no rollout {rollout_id!r}")
        return await read_trace(store, rollout_id, offset=_asked(_Start, request).offset)


async def _samples(live: "Live", request: Request) -> Any:
    from lightning_viewer.compare import compare_versions

    asked = _asked(_Versions, request)
    return compare_versions(await live.known(), asked.before, asked.after)


async def _runs(live: "Live", request: Request) -> Any:
    """List the runs that this one can be compared with, the newest first."""
    from lightning_core.runs.folder import runs_in

    folders = [] if live.root is None else runs_in(live.root)
    others = [(each.run_id, each.manifest()) for each in folders if each.run_id != live.run_id]
    runs = [{"id": run_id, "algorithm": each.algorithm, "start": each.start.timestamp()} for run_id, each in others]
    return sorted(runs, key=lambda each: -each["start"])


async def _compare(live: "Live", request: Request) -> Any:
    """Compare another run with this one."""
    from lightning_core.runs.folder import runs_in
    from lightning_core.runs.recording import read_best
    from lightning_core.runs.stored import copied
    from lightning_viewer.compare import compare, most_changed, read_side, side_of

    asked = request.query_params
    if live.root is None or live.folder is None:
        raise InvalidRequest("this server knows one run only; to compare two, start: agl ui RUN")
    given = asked.get("run", "")
    other = next((each for each in runs_in(live.root) if each.run_id == given), None)
    if other is None:
        raise NotFound(f"there is no run {given!r}; GET {PREFIX}/runs lists them")
    async with copied(other) as store:
        before = await read_side(other, store, asked.get("before"))
    best = read_best(live.folder.best_file)
    after = side_of(await live.known(), live.run_id, asked.get("after"), best=best)
    return most_changed(compare(before, after))


def _answer(value: Any) -> Response:
    from lightning_core.cli.console import to_json

    text = json.dumps(to_json(value), allow_nan=False, separators=(",", ":"))  # ASCII: a text may have half a character
    return Response(text, media_type="application/json", headers={"cache-control": "no-store"})


async def _as_events(changes: AsyncGenerator[dict[str, Any]]) -> AsyncGenerator[str]:
    try:
        async for each in changes:
            yield f"data: {json.dumps(each)}\n\n"
    finally:
        await changes.aclose()
