"""The referee over HTTP and MCP, behind one key."""

import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from lightning_http.auth import Keys
from lightning_http.body import BodyRefused, body_of
from lightning_http.call import RequireKey, answer_error
from lightning_http.listener import Listener, bind
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from lightning_core.errors import InvalidRequest, StoreError

_MAX_BYTES = 1_000_000
_WAIT_SECONDS = 30.0
"""How long an answer waits for a candidate by default; most clients wait a minute."""
_MAX_WAIT_SECONDS = 300.0
_CLOSE_SECONDS = 5.0

Body = TypeVar("Body", bound=BaseModel)


class Submission(BaseModel):
    """The body of a request that submits a candidate."""

    model_config = ConfigDict(extra="forbid")

    prompts: dict[str, str]
    parent: int | None = None


class Choice(BaseModel):
    """The body of a request that ends the game; it may be left out."""

    model_config = ConfigDict(extra="forbid")

    candidate: int | None = None


class Game(Protocol):
    """What is served; a `Referee`, which says what its methods do."""

    host: str
    port: int

    def rules(self) -> dict[str, Any]: ...
    async def submit(self, prompts: Mapping[str, str], parent: int | None) -> int: ...
    async def challenge(self, number: int) -> None: ...
    async def look(self, number: int, *, wait_seconds: float) -> dict[str, Any]: ...
    async def finish(self, number: int | None) -> None: ...


@asynccontextmanager
async def serving(referee: Game, key: str) -> AsyncIterator[str]:
    """Serve a referee, and give the address.

    Args:
        referee: What answers.
        key: What has to be known.

    Raises:
        ConfigError: When the port cannot be had, or the key cannot be one.
    """
    tools = tools_of(referee)
    mcp_app = tools.streamable_http_app(json_response=True, stateless_http=True, host=referee.host)
    routes = [*routes_of(referee), Mount("/", app=mcp_app)]
    app = Starlette(routes=routes, exception_handlers={StoreError: _answer, BodyRefused: _answer_refused})
    bound = bind(referee.host, referee.port)
    host, port = referee.host, bound.getsockname()[1]
    listener = Listener(RequireKey(app, Keys(key)), bound)
    raised: Exception | None = None
    async with tools.session_manager.run():
        await listener.open()
        try:
            yield f"http://{f'[{host}]' if ':' in host else host}:{port}"
        except Exception as exc:  # the session manager would make a group of it
            raised = exc
        finally:
            await listener.close(seconds=_CLOSE_SECONDS)
    if raised is not None:
        raise raised


def routes_of(referee: Game) -> list[Route]:
    """Return the routes of plain HTTP."""

    async def rules(request: Request) -> Response:
        return JSONResponse(referee.rules())

    async def submit(request: Request) -> Response:
        given = await _read(request, Submission)
        number = await referee.submit(given.prompts, given.parent)
        return JSONResponse(await referee.look(number, wait_seconds=_wait_of(request)))

    async def look(request: Request) -> Response:
        return JSONResponse(await referee.look(request.path_params["number"], wait_seconds=_wait_of(request)))

    async def challenge(request: Request) -> Response:
        number = request.path_params["number"]
        await referee.challenge(number)
        return JSONResponse(await referee.look(number, wait_seconds=_wait_of(request)))

    async def finish(request: Request) -> Response:
        await referee.finish((await _read(request, Choice)).candidate)
        return JSONResponse(referee.rules())

    return [
        Route("/rules", rules, methods=["GET"]),
        Route("/candidates", submit, methods=["POST"]),
        Route("/candidates/{number:int}", look, methods=["GET"]),
        Route("/candidates/{number:int}/challenge", challenge, methods=["POST"]),
        Route("/finish", finish, methods=["POST"]),
    ]


def tools_of(referee: Game) -> MCPServer:
    """Return the same as tools of MCP."""

    async def rules() -> dict[str, Any]:
        """Say what prompts there are to improve, which candidate is the best so far, and how many are left."""
        return referee.rules()

    async def submit(prompts: dict[str, str], parent: int | None = None) -> dict[str, Any]:
        """Submit a candidate: texts of prompts by name, with the same placeholders. What is left out stays as it is in
        the parent, the best candidate by default. It is run on training samples. Where the status is 'running', call
        `look` until it is 'ended'."""
        try:
            return await referee.look(await referee.submit(prompts, parent), wait_seconds=_WAIT_SECONDS)
        except StoreError as exc:
            raise ToolError(str(exc)) from exc

    async def look(candidate: int, wait_seconds: float = _WAIT_SECONDS) -> dict[str, Any]:
        """Say what is known of a candidate: its rewards on training samples, and whether it won its challenge."""
        try:
            return await referee.look(candidate, wait_seconds=_bounded(wait_seconds))
        except StoreError as exc:
            raise ToolError(str(exc)) from exc

    async def challenge(candidate: int) -> dict[str, Any]:
        """Compare a candidate with the best one on hidden samples. There are few challenges: use one when a candidate
        is clearly better on training samples. `beats_best` says if it is shown to be better; then it is the best."""
        try:
            await referee.challenge(candidate)
            return await referee.look(candidate, wait_seconds=_WAIT_SECONDS)
        except StoreError as exc:
            raise ToolError(str(exc)) from exc

    async def finish(candidate: int | None = None) -> dict[str, Any]:
        """End the game for good with a candidate, the best one by default. It is then tested."""
        try:
            await referee.finish(candidate)
        except StoreError as exc:
            raise ToolError(str(exc)) from exc
        return referee.rules()

    root, quiet = logging.getLogger(), logging.NullHandler()
    root.addHandler(quiet)  # else it makes the whole process log to stderr
    try:
        return MCPServer(
            "referee",
            instructions="Improve an agent's prompts. Read the rules, submit candidates, let the best of them "
            "challenge the best one before, and finish when you are done.",
            tools=[_tool(each) for each in (rules, submit, look, challenge, finish)],
        )
    finally:
        root.removeHandler(quiet)


def _tool(function: Callable[..., Any]) -> Tool:
    """Return a tool that refuses arguments which it does not have, and does not leave them out."""
    tool = Tool.from_function(function)
    known = tool.fn_metadata.arg_model
    tool.fn_metadata.arg_model = type(known.__name__, (known,), {}, extra="forbid")
    tool.parameters = tool.fn_metadata.arg_model.model_json_schema(by_alias=True)
    return tool


async def _read(request: Request, kind: type[Body]) -> Body:
    try:
        return kind.model_validate_json(await body_of(request, _MAX_BYTES) or b"{}")
    except ValidationError as exc:
        problems = json.loads(exc.json(include_url=False, include_input=False, include_context=False))
        raise InvalidRequest(f"the body is not a {kind.__name__.lower()}: {problems}") from exc


def _wait_of(request: Request) -> float:
    unknown = [name for name in request.query_params if name != "wait_seconds"]
    if unknown:
        raise InvalidRequest(f"there is no {unknown[0]!r}; a request may end with ?wait_seconds=NUMBER")
    text = request.query_params.get("wait_seconds", str(_WAIT_SECONDS))
    try:
        return _bounded(float(text))
    except ValueError as exc:
        raise InvalidRequest(f"wait_seconds is {text!r}; it is a number of seconds") from exc


def _bounded(seconds: float) -> float:
    return max(0.0, min(seconds, _MAX_WAIT_SECONDS)) if seconds == seconds else 0.0


async def _answer(request: Request, exc: Exception) -> Response:
    return answer_error(exc)


async def _answer_refused(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, BodyRefused)
    return JSONResponse({"detail": str(exc)}, exc.status)
