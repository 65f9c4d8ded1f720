"""The run itself: what it holds, an algorithm's state, its deletion."""

from typing import Annotated, Any

from fastapi import Query

from lightning_core.errors import InvalidRequest
from lightning_http.auth import Role
from lightning_http.messages import PREFIX, RunInfo, SavedState, SaveStateRequest, StateName
from lightning_http.routing import CallOf, Routes

routes = Routes("runs", PREFIX)

_RESERVED = "lightning."
"""What the names begin with under which the store itself keeps state."""


@routes.get("/run", role=Role.RUNNER)
async def get_run(call: CallOf) -> RunInfo:
    """Say which run the request is about."""
    return RunInfo(run_id=call.store.run_id)


@routes.post("/run/begin")
async def begin_run(call: CallOf) -> RunInfo:
    """Let there be work: a run that had ended goes on."""
    await call.store.begin_run(request_id=call.request_id)
    return RunInfo(run_id=call.store.run_id)


@routes.post("/run/end")
async def end_run(call: CallOf) -> RunInfo:
    """Let there be no more work: every claim is refused with `RunEnded`, those that wait, too."""
    await call.store.end_run(request_id=call.request_id)
    return RunInfo(run_id=call.store.run_id)


@routes.delete("/run")
async def delete_run(call: CallOf) -> RunInfo:
    """Delete everything that belongs to the run."""
    await call.store.delete_run()
    call.service.reported.set()
    return RunInfo(run_id=call.store.run_id)


@routes.get("/statistics", role=Role.RUNNER)
async def get_statistics(call: CallOf) -> dict[str, Any]:
    """Say how much the run holds."""
    return dict(await call.store.statistics())


@routes.get("/state")
async def load_state(call: CallOf, query: Annotated[StateName, Query()]) -> SavedState:
    """Get the state that was saved last under a name; null where there is none."""
    return SavedState.model_construct(state=await call.store.load_state(query.name))


@routes.put("/state")
async def save_state(call: CallOf, body: SaveStateRequest) -> StateName:
    """Keep an algorithm's state under a name, in place of what was there."""
    if body.name.startswith(_RESERVED):
        raise InvalidRequest(
            f"the name {body.name!r} begins with {_RESERVED!r}, which is the store's own; take another name"
        )
    await call.store.save_state(body.name, body.state, request_id=call.request_id)
    return StateName(name=body.name)
