"""The referee over HTTP and MCP, behind one key."""

import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from lightning_http.auth import Keys
from lightning_http.body import BodyRefused, body_of
from lightning_http.call import RequireKey, answer_error
from lightning_http.listener import Listener, bind
from lightning_http.web_pages import url_of
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from lightning_core.errors import InvalidRequest, StoreError, first_fault

_MAX_BYTES = 1_000_000
_WAIT_SECONDS = 30.0
"""How long an answer waits for a candidate by default; most clients wait a minute."""
_MAX_WAIT_SECONDS = 300.0
_CLOSE_SECONDS = 5.0


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
    actions = actions_of(referee)
    tools = [_tool(action) for action in actions]
    mcp = _mcp_server(tools)
    mcp_app = mcp.streamable_http_app(json_response=True, stateless_http=True, host=referee.host)
    routes = [*map(_route, actions, tools), Mount("/", app=mcp_app)]
    app = Starlette(routes=routes, exception_handlers={StoreError: _answer, BodyRefused: _answer_refused})
    bound = bind(referee.host, referee.port)
    listener = Listener(RequireKey(app, Keys(key)), bound)
    raised: Exception | None = None
    async with mcp.session_manager.run():
        await listener.open()
        try:
            yield url_of(referee.host, bound.getsockname()[1])
        except Exception as exc:  # the session manager would make a group of it
            raised = exc
        finally:
            await listener.close(seconds=_CLOSE_SECONDS)
    if raised is not None:
        raise raised


Action = Callable[..., Awaitable[dict[str, Any]]]

_ROUTES = {
    "rules": ("GET", "/rules"),
    "submit": ("POST", "/candidates"),
    "look": ("GET", "/candidates/{candidate:int}"),
    "challenge": ("POST", "/candidates/{candidate:int}/challenge"),
    "finish": ("POST", "/finish"),
}
"""The method and the path of each action."""


def actions_of(referee: Game) -> list[Action]:
    """Return what can be asked, over HTTP and as tools of MCP, whose descriptions are the docstrings."""

    async def rules() -> dict[str, Any]:
        """Say what prompts there are to improve, which candidate is the best so far, and how many are left."""
        return referee.rules()

    async def submit(
        prompts: dict[str, str], parent: int | None = None, wait_seconds: float = _WAIT_SECONDS
    ) -> dict[str, Any]:
        """Submit a candidate: texts of prompts by name, with the same placeholders. What is left out stays as it is in
        the parent, the best candidate by default. It is run on training samples. Where the status is 'running', call
        `look` until it is 'ended'."""
        return await look(await referee.submit(prompts, parent), wait_seconds)

    async def look(candidate: int, wait_seconds: float = _WAIT_SECONDS) -> dict[str, Any]:
        """Say what is known of a candidate: its rewards on training samples, and whether it won its challenge."""
        seconds = min(wait_seconds, _MAX_WAIT_SECONDS) if wait_seconds > 0 else 0.0
        return await referee.look(candidate, wait_seconds=seconds)

    async def challenge(candidate: int, wait_seconds: float = _WAIT_SECONDS) -> dict[str, Any]:
        """Compare a candidate with the best one on hidden samples. There are few challenges: use one when a candidate
        is clearly better on training samples. `beats_best` says if it is shown to be better; then it is the best."""
        await referee.challenge(candidate)
        return await look(candidate, wait_seconds)

    async def finish(candidate: int | None = None) -> dict[str, Any]:
        """End the game for good with a candidate, the best one by default. It is then tested."""
        await referee.finish(candidate)
        return referee.rules()

    return [rules, submit, look, challenge, finish]


def _tool(action: Action) -> Tool:
    """Return a tool that refuses arguments which it does not have, and does not leave them out."""

    @functools.wraps(action)
    async def call(**arguments: Any) -> dict[str, Any]:
        try:
            return await action(**arguments)
        except StoreError as exc:
            raise ToolError(str(exc)) from exc

    tool = Tool.from_function(call)
    known = tool.fn_metadata.arg_model
    tool.fn_metadata.arg_model = type(known.__name__, (known,), {}, extra="forbid")
    tool.parameters = tool.fn_metadata.arg_model.model_json_schema(by_alias=True)
    return tool


def _route(action: Action, tool: Tool) -> Route:
    """Return a route that takes the arguments of a tool from the body, the query and the path."""

    async def answer(request: Request) -> Response:
        try:
            body = TypeAdapter(dict[str, Any]).validate_json(await body_of(request, _MAX_BYTES) or b"{}")
            given = {**body, **request.query_params, **request.path_params}
            arguments = tool.fn_metadata.arg_model.model_validate(given)
        except ValidationError as exc:
            raise InvalidRequest(f"{tool.name} does not take this: {first_fault(exc)}") from exc
        return JSONResponse(await action(**arguments.model_dump()))

    method, path = _ROUTES[tool.name]
    return Route(path, answer, methods=[method])


def _mcp_server(tools: Sequence[Tool]) -> MCPServer:
    root, quiet = logging.getLogger(), logging.NullHandler()
    root.addHandler(quiet)  # else it makes the whole process log to stderr
    try:
        return MCPServer(
            "referee",
            instructions="Improve an agent's prompts. Read the rules, submit candidates, let the best of them "
            "challenge the best one before, and finish when you are done.",
            tools=list(tools),
        )
    finally:
        root.removeHandler(quiet)


async def _answer(request: Request, exc: Exception) -> Response:
    return answer_error(exc)


async def _answer_refused(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, BodyRefused)
    return JSONResponse({"detail": str(exc)}, exc.status)
