"""A model that takes and gives tokens, behind OpenAI's chat and completions APIs."""

import asyncio
import logging
import secrets
import time
from bisect import bisect_left
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from typing import Any, ParamSpec, TypeVar

from lightning_proxy.backend import (
    Backend,
    BackendAnswer,
    BackendBroke,
    BackendRequest,
    BackendTimeout,
    BackendUnavailable,
    TokenCounts,
    WholeAnswer,
)
from lightning_proxy.jsons import dump
from lightning_proxy.request import TOO_LONG, Refused, openai_error

from lightning_core.errors import ConfigError
from lightning_tokens.engine import EngineRefused, Generated, TokenEngine, Tokenizer
from lightning_tokens.prompts import Conversations, Prompts, Setting, TextStream
from lightning_tokens.request import CHAT, COMPLETIONS, SamplingParams, WrongParameter, error_of, is_hint, read_request
from lightning_tokens.shapes import (
    BeforeStop,
    Chat,
    Completion,
    Reasoning,
    Shape,
    TextBefore,
    TokenToolParser,
    ToolParser,
    parse_hermes,
    parse_json,
    start_of,
)

T = TypeVar("T")
P = ParamSpec("P")


logger = logging.getLogger(__name__)

_LONG_BYTES = 16 * 1024
"""A text that takes some ten milliseconds to make tokens of."""
_BYTES_PER_TOKEN = 4
_TAIL = 32
"""How many tokens at the end of a prompt may begin the thinking."""


class TokensBackend(Backend):
    """Renders conversations with the model's chat template, and continues them by their exact tokens.

    The prompt of a conversation's next turn begins with the very tokens that were sampled before, and not with what
    their text would give: so an attempt is one row to learn from. What it remembers for that is bounded.

        engine, tokenizer = MyEngine(), AutoTokenizer.from_pretrained("Qwen/Qwen3-4B")
        LLMProxy(model_list=[{"model_name": "policy", "backend": TokensBackend(engine, tokenizer)}], store=store)

    Args:
        engine: Samples tokens.
        tokenizer: The model's; as those of transformers are. None for a subclass that loads it before the first call.
        chat_template_kwargs: Options of its chat template, such as `{"enable_thinking": False}`.
        tool_parser: Finds tool calls in an answer's text, where tools are offered: `hermes`, a function, or None; or in
            its tokens: a `TokenToolParser`.
        reasoning: The texts that begin and end what the model thinks before it answers, such as `("<think>",
            "</think>")`: it is `reasoning_content` then, and no part of the content. None to leave it there.
        loop: The event loop that the engine belongs to; None for the proxy's own.
        max_remembered_tokens: How many tokens of conversations are remembered; each takes 4 bytes.

    Raises:
        ConfigError: When the engine or the parser is none.
    """

    gives_tokens = True
    chat_only = True
    _tokenizer: Tokenizer
    _prompts: Prompts

    def __init__(
        self,
        engine: TokenEngine,
        tokenizer: Tokenizer | None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tool_parser: ToolParser | TokenToolParser | str | None = "hermes",
        reasoning: tuple[str, str] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        max_remembered_tokens: int = 20_000_000,
    ) -> None:
        if not callable(getattr(engine, "generate", None)):
            raise ConfigError(f"engine is of type {type(engine).__name__}, which has no `generate`; see TokenEngine")
        if isinstance(tool_parser, str):
            if tool_parser != "hermes":
                raise ConfigError(
                    f"tool_parser is {tool_parser!r}; it is 'hermes', a function, a TokenToolParser or None"
                )
            tool_parser = parse_hermes
        self._engine = engine
        self._takes: Collection[str] = getattr(engine, "takes", ())
        self._warned: set[str] = set()
        """The ignored parameters that a warning told of."""
        self._tool_parser = tool_parser
        self._reasoning = reasoning
        self._loop = loop
        self.conversations = Conversations(max_tokens=max_remembered_tokens)
        """What is remembered."""
        self._template_options = dict(chat_template_kwargs or {})
        if tokenizer is not None:
            self._use(tokenizer)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="agl-tokens")
        """For what would keep the event loop from all other calls, in turn."""

    def cost(self, tokens: TokenCounts) -> float | None:
        return 0.0  # it is an engine of this process

    @property
    def address(self) -> str:
        return f"in-process:{type(self._engine).__name__}"

    async def send(self, request: BackendRequest) -> BackendAnswer:
        fields = request.fields
        if fields is None or request.path not in (CHAT, COMPLETIONS):
            message = f"a model of tokens serves chat and completions; got {request.path}"
            return WholeAnswer(404, dump(openai_error(Refused(404, "not_served", message))))
        try:
            params = read_request(fields, request.path, takes=self._takes)
            self._warn(params.ignored, fields)
            await self._load(fields)
            shape: Shape
            if request.path == COMPLETIONS:
                shape = Completion(fields, await self._completion_prompt(fields.get("prompt")))
            else:
                shape = Chat(fields, await self._chat_prompt(request, fields, params))
            self._require_room(shape.prompt, params, "prompt" if request.path == COMPLETIONS else "messages")
            answer = await self._answer(shape, request, params)
        except Refused as refused:
            return WholeAnswer(refused.status, dump(error_of(refused)))
        except EngineRefused as refused:
            return refused.answer
        answer.ignored = params.ignored
        return answer

    async def _load(self, fields: Mapping[str, Any]) -> None:
        """Get ready for the first call, where that takes time."""

    def _use(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._prompts = Prompts(tokenizer, self._template_options, self.conversations)

    def _warn(self, ignored: Collection[str], fields: Mapping[str, Any]) -> None:
        for name in ignored:
            if name not in self._warned and not is_hint(name):
                self._warned.add(name)
                logger.warning(
                    "lightning.parameter_ignored name=%s model=%s: %s cannot honour it here; calls go on without it, "
                    "and their spans say so",
                    name,
                    fields.get("model"),
                    self.address,
                )

    async def aclose(self) -> None:
        """The engine belongs to its maker."""
        self._thread.shutdown(wait=False)

    async def _offloaded(self, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function, in the thread where what it works on is large."""
        if size < _LONG_BYTES:
            return function(*args, **kwargs)
        return await asyncio.wrap_future(self._thread.submit(function, *args, **kwargs))

    async def _completion_prompt(self, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            encode = self._tokenizer.encode
            return list(await self._offloaded(len(prompt), encode, prompt, add_special_tokens=True))
        if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
            return prompt
        raise WrongParameter("prompt", "prompt is one text, or one list of token ids")

    async def _chat_prompt(
        self, request: BackendRequest, fields: Mapping[str, Any], params: SamplingParams
    ) -> list[int]:
        messages = fields.get("messages")
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise WrongParameter("messages", "messages is missing, or no list of messages")
        return await self._offloaded(
            len(request.body), self._prompts.make, request.attempt, messages, _setting(fields, params)
        )

    def _require_room(self, prompt: Sequence[int], params: SamplingParams, source: str) -> None:
        """Refuse what goes beyond the context, where the engine says how long that is."""
        most: int | None = getattr(self._engine, "max_context_tokens", None)
        if most is None:
            return
        room, wanted = most - len(prompt), params.sampling.get("max_tokens", 1)
        if wanted > room:
            # OpenAI's and vLLM's words, which clients look for.
            what = (
                f"This model's maximum context length is {most} tokens, and the prompt has {len(prompt)} input tokens"
            )
            if room < 1:
                raise WrongParameter(source, f"{what}; make it shorter", kind=TOO_LONG)
            if getattr(self._engine, "lowers_max_tokens", False):
                return
            raise WrongParameter("max_tokens", f"{what}; max_tokens is {wanted}, ask for {room} at most", kind=TOO_LONG)

    async def _answer(self, shape: Shape, request: BackendRequest, params: SamplingParams) -> BackendAnswer:
        if params.stream:
            stream = _Stream(partial(self._pieces, shape, request, params))
            await stream.begin()
            return stream
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._sample(shape.prompt, params.sampling_of(choice), request))
                for choice in range(params.choices)
            ]
        for task in tasks:
            if isinstance(error := task.result(), Exception):
                raise error
        results = [result for task in tasks if isinstance(result := task.result(), Generated)]
        for each in results:
            size = len(each.token_ids) * _BYTES_PER_TOKEN
            text = await self._offloaded(size, self._tokenizer.decode, each.token_ids, skip_special_tokens=True)
            text = BeforeStop(_stop_words(params)).feed(text, is_last=True)
            thought, text = self._parted(shape).feed(text, is_last=True)
            content, calls = await self._parsed(thought, text, params, each.token_ids, request)
            message = shape.add(each, content, calls, thought)
            await self._remember(request, params, message, shape.prompt, each.token_ids)
        answer = WholeAnswer(200, dump(shape.complete()))
        answer.weight_versions = _span_of([each.weight_versions for each in results])
        return answer

    async def _pieces(
        self,
        shape: Shape,
        request: BackendRequest,
        params: SamplingParams,
        answer: BackendAnswer,
    ) -> AsyncIterator[bytes]:
        """Stream an answer. Where tools are offered, text that may be part of a call comes at the end."""
        stream, ids, texts, thoughts = TextStream(self._tokenizer), list[int](), list[str](), list[str]()
        stop, parted, parse = BeforeStop(_stop_words(params)), self._parted(shape), self._parser(params)
        before = None if parse is None else TextBefore(start_of(parse))
        reason: str | None = None
        versions: list[tuple[int, int] | None] = []
        async with aclosing(self._generated(shape.prompt, params.sampling, request)) as generated:
            async for piece in generated:
                if not versions:
                    yield shape.first()
                ids.extend(piece.token_ids)
                versions.append(piece.weight_versions)
                answer.weight_versions = _span_of(versions)
                reason = piece.finish_reason
                size, is_last = len(piece.token_ids) * _BYTES_PER_TOKEN, reason is not None
                text = await self._offloaded(size, stream.feed, piece.token_ids, is_last=is_last)
                thought, text = parted.feed(stop.feed(text, is_last=is_last), is_last=is_last)
                thoughts.append(thought)
                texts.append(text)
                yield shape.piece(piece, text if before is None else before.feed(text), thought)
        whole, thought = "".join(texts), "".join(thoughts)
        content, calls = await self._parsed(thought, whole, params, ids, request)
        await self._remember(request, params, shape.message(content, calls, thought), shape.prompt, ids)
        if not versions:
            yield shape.first()
        rest = "" if before is None else content[before.told :]
        for event in shape.last(rest, calls, reason or "stop", len(ids)):
            yield event

    def _parted(self, shape: Shape) -> Reasoning:
        """Return what parts the thinking from an answer; of completions nothing is parted."""
        if self._reasoning is None or isinstance(shape, Completion):
            return Reasoning(None, has_begun=False)
        end = self._tokenizer.decode(shape.prompt[-_TAIL:], skip_special_tokens=True)
        return Reasoning(self._reasoning, has_begun=end.rstrip().endswith(self._reasoning[0]))

    def _parser(self, params: SamplingParams) -> ToolParser | TokenToolParser | None:
        """Return what finds tool calls in an answer; None where there can be none."""
        if params.is_forced:
            return parse_json
        return self._tool_parser if params.finds_tools else None

    async def _parsed(
        self,
        thought: str,
        text: str,
        params: SamplingParams,
        token_ids: Sequence[int],
        request: BackendRequest,
    ) -> tuple[str, list[dict[str, Any]]]:
        """Return what is left of what was said, and its tool calls. A parser that fails found none."""
        parse = self._parser(params)
        if parse is None or (thought and not text):
            return text, []
        try:
            if callable(parse):
                return parse(text)
            if thought:
                token_ids = await self._offloaded(len(token_ids) * _BYTES_PER_TOKEN, self._behind, token_ids)
            return await parse.read(token_ids, (request.fields or {})["tools"])
        except Exception:  # what was sampled is not lost for it
            logger.exception("lightning.tool_parser_failed; the text stays as it is")
            return text, []

    def _behind(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Return the tokens behind the thinking."""
        assert self._reasoning is not None
        end, decode = self._reasoning[1], self._tokenizer.decode
        lengths = range(len(token_ids) + 1)
        return token_ids[
            bisect_left(lengths, True, key=lambda n: end in decode(token_ids[:n], skip_special_tokens=True)) :
        ]

    async def _generated(
        self, prompt: list[int], sampling: Mapping[str, Any], request: BackendRequest
    ) -> AsyncGenerator[Generated]:
        stream = getattr(self._engine, "stream", None)
        if stream is None or self._loop is not None:
            result = await self._sample(prompt, sampling, request)
            if isinstance(result, Exception):
                raise result
            yield result
            return
        pieces = stream(list(prompt), dict(sampling), request_id=_request_id(request))
        try:
            async for piece in pieces:
                yield piece
        except Exception as exc:
            raise self._failure(exc) from exc
        finally:
            await _close(pieces)

    async def _sample(
        self, prompt: list[int], sampling: Mapping[str, Any], request: BackendRequest
    ) -> Generated | Exception:
        """Sample an answer; return what went wrong, so that the answers beside it come to their end."""
        try:
            return await self._there(
                self._engine.generate(list(prompt), dict(sampling), request_id=_request_id(request))
            )
        except Exception as exc:
            return self._failure(exc)

    def _failure(self, error: Exception) -> Exception:
        """Return how an engine failed, in the proxy's words; one behind HTTP says it in them."""
        if isinstance(error, (BackendUnavailable, BackendTimeout, BackendBroke, EngineRefused)):
            return error
        broke = BackendBroke(f"{self.address} failed: {type(error).__name__}: {error}")
        broke.__cause__ = error
        return broke

    async def _there(self, call: Coroutine[Any, Any, T]) -> T:
        if self._loop is None or self._loop is asyncio.get_running_loop():
            return await call
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))

    async def _remember(
        self,
        request: BackendRequest,
        params: SamplingParams,
        message: dict[str, Any] | None,
        prompt: Sequence[int],
        sampled: Sequence[int],
    ) -> None:
        if message is not None and request.attempt is not None and request.fields is not None:
            messages, setting = request.fields["messages"], _setting(request.fields, params)
            await self._offloaded(
                len(request.body), self._prompts.remember, request.attempt, messages, setting, message, prompt, sampled
            )


class _Stream(BackendAnswer):
    """An answer that is made while it is read."""

    status = 200
    headers = (("content-type", "text/event-stream; charset=utf-8"),)

    def __init__(self, pieces_of: Callable[[BackendAnswer], AsyncIterator[bytes]]) -> None:
        self._pieces = pieces_of(self)
        self._first = b""

    async def begin(self) -> None:
        """Wait for the first piece: what fails before it can be tried again."""
        self._first = await anext(self._pieces, b"")

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self.pieces()])

    async def pieces(self) -> AsyncIterator[bytes]:
        yield self._first
        async for piece in self._pieces:
            yield piece

    async def aclose(self) -> None:
        await _close(self._pieces)


async def _close(pieces: AsyncIterator[Any]) -> None:
    if (close := getattr(pieces, "aclose", None)) is not None:
        await close()


def _setting(fields: Mapping[str, Any], params: SamplingParams) -> Setting:
    return {"tools": fields.get("tools") or None, "options": dict(params.template_options)}


def _stop_words(params: SamplingParams) -> list[str]:
    stop = params.sampling.get("stop", [])
    return [stop] if isinstance(stop, str) else stop


def _span_of(versions: Sequence[tuple[int, int] | None]) -> tuple[int, int] | None:
    """Return the oldest and the newest of all; None where one is not known."""
    known = [each for each in versions if each is not None]
    if not known or len(known) < len(versions):
        return None
    return min(oldest for oldest, _ in known), max(newest for _, newest in known)


def _request_id(request: BackendRequest) -> str:
    return request.attempt or f"call-{time.time_ns():x}-{secrets.token_hex(4)}"
