"""The process that generates: verl's calls on one side, HTTP on the other."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web
from lightning_proxy.backend import BackendBroke, BackendRequest
from lightning_tokens import TokenEngine, TokensBackend
from lightning_tokens.batcher import Batcher, Rejected
from lightning_tokens.generator import Generator
from verl.workers.rollout.replica import TokenOutput

_MAX_BODY_BYTES = 64 * 1024 * 1024
_STOP_REASONS = {"stop": "completed", "length": "length", "aborted": "aborted"}


class HFServer:
    """Becomes a Ray actor; every method may be called at any time.

    Args:
        path: The model.
        device: Where it computes.
        dtype: What it computes with.
        seed: Where sampling begins.
        max_tokens: The longest answer, where a request does not say.
        max_batch: The most prompts at the same time.
        trust_remote_code: Whether code that comes with the model may run.
    """

    def __init__(
        self,
        path: str,
        *,
        device: str,
        dtype: str,
        seed: int,
        max_tokens: int,
        max_batch: int,
        trust_remote_code: bool,
    ) -> None:
        self._generator = Generator.load(
            path, device=device, dtype=dtype, seed=seed, trust_remote_code=trust_remote_code
        )
        self._options = {"max_batch": max_batch, "default_max_tokens": max_tokens}

    async def start(self, host: str) -> str:
        """Take requests; return where over HTTP."""
        self._batcher = Batcher(self._generator, **self._options)
        self._running = asyncio.create_task(self._batcher.run(), name="batches")
        self._front = HttpFront(self._batcher, self._generator.tokenizer)
        return await self._front.start(host)

    # What verl's client calls

    async def generate(
        self, request_id: str, *, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], **_: Any
    ) -> TokenOutput:
        """Continue a prompt. To one that is refused nothing is added, and verl's client goes to another server."""
        try:
            answered = await self._batcher.ask(list(prompt_ids), sampling_params)
        except Rejected:
            return TokenOutput(
                token_ids=[], log_probs=[], stop_reason="aborted", extra_fields={"global_steps": self._batcher.version}
            )
        return TokenOutput(
            token_ids=answered.answer.token_ids,
            log_probs=answered.answer.logprobs,
            stop_reason=_STOP_REASONS[answered.answer.end],
            extra_fields={"global_steps": answered.version},
        )

    # What the training worker calls

    async def update_weights(self, weights: Mapping[str, Any], global_steps: int | None) -> None:
        """Take other weights."""
        await self._batcher.update(weights, global_steps)

    async def fingerprint(self) -> str:
        """Return a digest of the weights, to tell whether they have changed."""
        return await asyncio.to_thread(self._generator.fingerprint)

    # What verl's replica calls

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Take requests."""
        self._batcher.open()

    async def sleep(self) -> None:
        """Let requests wait."""
        await self._batcher.close()

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        """Give back what there is of the answers under way, and let further requests wait, or refuse them."""
        await self._batcher.close(abort=True, reject=reject_request)

    async def resume_generation(self) -> None:
        """Take requests."""
        self._batcher.open()

    async def clear_kv_cache(self) -> None:
        """Nothing is kept between two requests."""

    async def release_kv_cache(self) -> None:
        """Nothing is kept between two requests."""

    async def resume_kv_cache(self) -> None:
        """Nothing is kept between two requests."""

    async def start_profile(self, **_: Any) -> None:
        """There is no profiler."""

    async def stop_profile(self) -> None:
        """There is no profiler."""


class HttpFront:
    """Serves `/v1/chat/completions` and `/v1/completions` on a free port, with vLLM's fields.

    Args:
        engine: Samples tokens.
        tokenizer: The model's.
    """

    def __init__(self, engine: TokenEngine, tokenizer: Any) -> None:
        self._backend = TokensBackend(engine, tokenizer)
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_post("/v1/{path:.*}", self._call)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None)

    async def start(self, host: str) -> str:
        """Listen; return where, as `host:port`."""
        await self._runner.setup()
        await web.TCPSite(self._runner, host, 0).start()
        address, port = self._runner.addresses[0][:2]
        return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"

    async def stop(self) -> None:
        """Close the port."""
        await self._runner.cleanup()

    async def _call(self, request: web.Request) -> web.StreamResponse:
        fields = await request.json()
        try:
            answer = await self._backend.send(BackendRequest("POST", f"/{request.match_info['path']}", fields=fields))
            if not fields.get("stream"):
                return web.Response(status=answer.status, body=await answer.read(), content_type="application/json")
            response = web.StreamResponse(status=answer.status, headers=dict(answer.headers))
            await response.prepare(request)
            async for piece in answer.pieces():
                await response.write(piece)
        except BackendBroke as exc:
            cause = exc.__cause__ or exc
            status = 400 if isinstance(cause, ValueError) else 500
            error = {"message": str(cause), "type": "invalid_request_error", "param": None, "code": status}
            return web.json_response({"error": error}, status=status)
        return response
