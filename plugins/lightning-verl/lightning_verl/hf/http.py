"""The model over HTTP, with vLLM's fields."""

from typing import Any

from aiohttp import web
from lightning_proxy.backend import BackendBroke, BackendRequest
from lightning_proxy.tokens import TokenEngine, TokensBackend

_MAX_BODY_BYTES = 64 * 1024 * 1024


class HttpFront:
    """Serves `/v1/chat/completions` and `/v1/completions` on a free port.

    Args:
        engine: Samples tokens.
        tokenizer: The model's.
        name: What the model is called.
    """

    def __init__(self, engine: TokenEngine, tokenizer: Any, *, name: str) -> None:
        self._backend = TokensBackend(engine, tokenizer)
        self._name = name
        self._runner: web.AppRunner | None = None

    async def start(self, host: str) -> str:
        """Listen; return where, as `host:port`."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._call)
        app.router.add_post("/v1/completions", self._call)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, 0)
        await site.start()
        address, port = self._runner.addresses[0][:2]
        return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"

    async def stop(self) -> None:
        """Close the port."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self._name, "object": "model"}]})

    async def _call(self, request: web.Request) -> web.StreamResponse:
        try:
            fields = await request.json()
        except ValueError as exc:
            return _error(400, f"the body is not JSON: {exc}")
        if not isinstance(fields, dict):
            return _error(400, "the body is not a JSON object")
        path = request.path.removeprefix("/v1")
        try:
            answer = await self._backend.send(BackendRequest(request.method, path, fields=fields))
            if fields.get("stream") is not True:
                return web.Response(status=answer.status, body=await answer.read(), content_type="application/json")
            response = web.StreamResponse(status=answer.status, headers=dict(answer.headers))
            await response.prepare(request)
            async for piece in answer.pieces():
                await response.write(piece)
        except BackendBroke as exc:
            cause = exc.__cause__
            return _error(400 if isinstance(cause, ValueError) else 500, str(cause or exc))
        return response


def _error(status: int, message: str) -> web.Response:
    return web.json_response(
        {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": status}}, status=status
    )
