"""Engines behind HTTP that take and give tokens: vLLM's completions, and SGLang's generate."""

import json
import re
from abc import ABC, abstractmethod
from asyncio import wrap_future
from collections.abc import AsyncGenerator, Mapping
from importlib.util import find_spec
from typing import Any, ClassVar

from lightning_http.body import Seconds
from lightning_proxy.answer import mapping, objects
from lightning_proxy.backend import BackendAnswer, BackendBroke, BackendRequest, TokenCounts, WholeAnswer
from lightning_proxy.jsons import dump, parse_object
from lightning_proxy.openai_backend import OpenAIBackend, from_environment
from lightning_proxy.request import TOO_LONG, Refused, openai_error
from lightning_proxy.sse import EventReader, NoEventStream
from pydantic import PositiveInt

from lightning_core.errors import ConfigError
from lightning_tokens.backend import TokensBackend
from lightning_tokens.engine import EngineRefused, Generated, Tokenizer
from lightning_tokens.request import JSON_SCHEMA, WrongParameter
from lightning_tokens.shapes import TokenToolParser, ToolParser

_JSON = (("content-type", "application/json"),)
_OVERFLOWS = (
    re.compile(r"input \((?P<tokens>\d+) tokens\) is longer than the model's context length \((?P<most>\d+)"),
    re.compile(r"maximum context length of (?P<most>\d+) tokens.*?(?P<tokens>\d+) tokens from the input", re.DOTALL),
)
"""How SGLang says that a conversation is too long."""


class ServerEngine(ABC):
    """A `TokenEngine` behind HTTP. What goes wrong is told as `OpenAIBackend` tells it.

    Args:
        http: The connections to the server.
    """

    takes = frozenset({JSON_SCHEMA, "logit_bias", "min_tokens"})
    lowers_max_tokens = True
    path: ClassVar[str]

    def __init__(self, http: OpenAIBackend) -> None:
        self._http = http
        self.model: str | None = None
        """What the server calls it."""
        self.max_context_tokens: int | None = None

    async def load(self, model: str | None) -> None:
        """Get ready for the first call.

        Args:
            model: What the server calls the model.
        """
        self.model = model

    async def generate(self, prompt_ids: list[int], sampling: Mapping[str, Any], *, request_id: str) -> Generated:
        """Continue a prompt in one piece."""
        fields = await self.ask("POST", self.path, self.request(prompt_ids, sampling))
        generated = self.read(fields, 0)
        if generated is None or generated.finish_reason is None:
            raise BackendBroke(f"{self._http.address} answered without an answer: {dump(fields)[:200]!r}")
        return generated

    async def stream(
        self, prompt_ids: list[int], sampling: Mapping[str, Any], *, request_id: str
    ) -> AsyncGenerator[Generated]:
        """Continue a prompt piece by piece."""
        answer = await self._send("POST", self.path, {**self.request(prompt_ids, sampling), "stream": True})
        events, n_tokens, is_begun, is_complete = EventReader(), 0, False, False
        try:
            async for piece in answer.pieces():
                for event in events.feed(piece):
                    fields = event.fields() or {}
                    if "error" in fields:
                        raise self._failure(fields, is_begun=is_begun)
                    if (generated := self.read(fields, n_tokens)) is not None:
                        n_tokens += len(generated.token_ids)
                        is_begun, is_complete = True, generated.finish_reason is not None
                        yield generated
        except NoEventStream as exc:
            raise BackendBroke(f"{self._http.address} sent no event stream: {exc}") from exc
        finally:
            await answer.aclose()
        if not is_complete:
            raise BackendBroke(f"{self._http.address} ended its stream before the answer was complete")

    async def ask(self, method: str, path: str, fields: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the JSON object that the server answers.

        Raises:
            EngineRefused: When it answers with an error.
        """
        answer = await self._send(method, path, fields)
        try:
            body = await answer.read()
        finally:
            await answer.aclose()
        reply = parse_object(body)
        if reply is None:
            raise BackendBroke(f"{self._http.address} answered no JSON object: {body[:200]!r}")
        return reply

    @abstractmethod
    def request(self, prompt_ids: list[int], sampling: Mapping[str, Any]) -> dict[str, Any]:
        """Return the server's request, not streamed."""

    @abstractmethod
    def read(self, fields: Mapping[str, Any], told: int) -> Generated | None:
        """Return what an answer, or an event of a stream, has sampled; None where it tells nothing of that.

        Args:
            fields: The answer or the event.
            told: How many tokens the events before it had.
        """

    async def _send(self, method: str, path: str, fields: dict[str, Any] | None) -> BackendAnswer:
        body = b"" if fields is None else dump(fields)
        answer = await self._http.send(BackendRequest(method, path, headers=_JSON, body=body, fields=fields))
        if answer.status < 300:
            return answer
        try:
            reply = await answer.read()
        finally:
            await answer.aclose()
        raise EngineRefused(WholeAnswer(answer.status, _in_known_words(reply), answer.headers))

    def _failure(self, fields: Mapping[str, Any], *, is_begun: bool) -> Exception:
        """Return the error of a stream: vLLM refuses some calls in the first event of it."""
        error = fields["error"]
        status = mapping(error).get("code")
        if not is_begun and isinstance(status, int) and 400 <= status < 600:
            return EngineRefused(WholeAnswer(status, _in_known_words(dump(fields))))
        return BackendBroke(f"{self._http.address} broke off its answer: {mapping(error).get('message') or error}")


class VllmEngine(ServerEngine):
    """vLLM: `/completions` with the prompt's token ids, and `return_token_ids`."""

    path = "/completions"

    async def load(self, model: str | None) -> None:
        # Completions have 16 tokens where the call does not say how many, as chat has not.
        served = objects((await self.ask("GET", "/models")).get("data"))
        lengths = {entry.get("id"): entry.get("max_model_len") for entry in served}
        known = [length for length in (lengths.get(model), *lengths.values()) if isinstance(length, int)]
        self.model, self.max_context_tokens = model, next(iter(known), None)

    def request(self, prompt_ids: list[int], sampling: Mapping[str, Any]) -> dict[str, Any]:
        fields = {"model": self.model, "prompt": prompt_ids, "return_token_ids": True, "logprobs": 0, **sampling}
        if "max_tokens" not in fields:
            if self.max_context_tokens is None:
                message = f"max_tokens is missing, and {self._http.address} does not say max_model_len; give max_tokens"
                raise WrongParameter("max_tokens", message)
            fields["max_tokens"] = self.max_context_tokens - len(prompt_ids)
        elif self.max_context_tokens is not None:  # vLLM lowers what is too long for the prompt, and refuses more
            fields["max_tokens"] = min(fields["max_tokens"], self.max_context_tokens - len(prompt_ids))
        if (schema := fields.pop(JSON_SCHEMA, None)) is not None:
            form = {"name": "answer", "schema": schema}
            fields["response_format"] = {"type": "json_schema", "json_schema": form}
        return fields

    def read(self, fields: Mapping[str, Any], told: int) -> Generated | None:
        for choice in objects(fields.get("choices"))[:1]:
            ids = choice.get("token_ids")
            if ids is None:
                message = "answered without token ids, which vLLM gives from 0.10.2 on for return_token_ids"
                raise BackendBroke(f"{self._http.address} {message}")
            return Generated(ids, mapping(choice.get("logprobs")).get("token_logprobs"), choice.get("finish_reason"))
        return None


class SglangEngine(ServerEngine):
    """SGLang: `/generate` with `input_ids`, and `return_logprob`, which gives the ids, too."""

    path = "/generate"

    def request(self, prompt_ids: list[int], sampling: Mapping[str, Any]) -> dict[str, Any]:
        params: dict[str, Any] = {"max_tokens": None, **sampling}  # null for as many as there is room for
        if (schema := params.get(JSON_SCHEMA)) is not None:
            params[JSON_SCHEMA] = json.dumps(schema)
        if params.get("top_k") == 0:
            params["top_k"] = -1
        params = {_SGLANG_NAMES.get(name, name): value for name, value in params.items()}
        return {"input_ids": prompt_ids, "sampling_params": params, "return_logprob": True}

    def read(self, fields: Mapping[str, Any], told: int) -> Generated | None:
        meta = mapping(fields.get("meta_info"))
        pairs, count = meta.get("output_token_logprobs"), meta.get("output_token_logprobs_length")
        reason = mapping(meta.get("finish_reason")).get("type")
        if pairs is None:
            return None
        # Its events have all tokens so far, or those that are new, as the server was started; the count is of all.
        new = (len(pairs) if count is None else count) - told
        pairs = pairs[len(pairs) - new :] if new else []
        return Generated([pair[1] for pair in pairs], [pair[0] for pair in pairs], reason)


_SGLANG_NAMES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "seed": "sampling_seed"}


class ServerTokens(TokensBackend):
    """A model that a server samples from, as a backend by name; see `VllmTokens` and `SglangTokens`."""

    engine_type: ClassVar[type[ServerEngine]]

    def __init__(
        self,
        api_base: str,
        api_key: str | None = None,
        *,
        tokenizer: Tokenizer | str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: Seconds | None = 600.0,
        stream_timeout: Seconds | None = None,
        connect_timeout: Seconds = 5.0,
        max_connections: PositiveInt = 4096,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tool_parser: ToolParser | TokenToolParser | str | None = "hermes",
        reasoning: tuple[str, str] | None = None,
        max_remembered_tokens: int = 20_000_000,
    ) -> None:
        is_named = tokenizer is None or isinstance(tokenizer, str)
        if is_named and find_spec("transformers") is None:
            raise ConfigError(
                "transformers loads the model's tokenizer, and is not installed; install lightning-tokens[tokenizer]"
            )
        self._http = OpenAIBackend(
            self.base_of(from_environment("api_base", api_base)),
            api_key,
            headers=headers,
            timeout=timeout,
            stream_timeout=stream_timeout,
            connect_timeout=connect_timeout,
            max_connections=max_connections,
        )
        self._server = self.engine_type(self._http)
        self._tokenizer_name = tokenizer if isinstance(tokenizer, str) else None
        self._has_tokenizer = not is_named
        self._is_loaded = False
        super().__init__(
            self._server,
            None if isinstance(tokenizer, str) else tokenizer,
            chat_template_kwargs=chat_template_kwargs,
            tool_parser=tool_parser,
            reasoning=None if reasoning is None else (reasoning[0], reasoning[1]),
            max_remembered_tokens=max_remembered_tokens,
        )

    @staticmethod
    def base_of(api_base: str) -> str:
        """Return where the engine's path is below."""
        return api_base

    def cost(self, tokens: TokenCounts) -> float | None:
        return None  # as that of any other server

    @property
    def address(self) -> str:
        return self._http.address

    async def aclose(self) -> None:
        await super().aclose()
        await self._http.aclose()

    async def _load(self, fields: Mapping[str, Any]) -> None:
        if not self._is_loaded:
            model = fields.get("model")
            await self._server.load(model)
            await wrap_future(self._thread.submit(self._load_tokenizer, self._tokenizer_name or str(model)))
            self._is_loaded = True

    def _load_tokenizer(self, name: str) -> None:
        if self._has_tokenizer:  # perhaps for another call, in this thread
            return
        from transformers import AutoTokenizer

        try:
            self._use(AutoTokenizer.from_pretrained(name))
        except Exception as exc:  # of the hub, the file system, or the tokenizer itself
            message = f"the tokenizer {name!r} cannot be loaded: {exc}; the entry's option tokenizer names another one"
            raise Refused(500, "no_tokenizer", message) from exc
        self._has_tokenizer = True


class VllmTokens(ServerTokens):
    """vLLM's server, so that an attempt is one row: prompts are token ids, and go on with those that were sampled.

        {"model_name": "policy", "backend": "vllm-tokens",
         "litellm_params": {"model": "Qwen/Qwen2.5-0.5B-Instruct", "api_base": "http://127.0.0.1:8000/v1"}}

    Args:
        api_base: Its base URL, with `/v1`; `os.environ/NAME` for a variable.
        api_key: What to say to it; `os.environ/NAME` for a variable.
        tokenizer: The model's, or its name or folder for transformers; None for the entry's `model`.
        headers: Sent with every call.
        timeout: Seconds that a whole call may take; None for no limit.
        stream_timeout: Seconds from one piece of a stream to the next; None for `timeout`.
        connect_timeout: Seconds to connect.
        max_connections: How many calls may be under way at once.
        chat_template_kwargs: As for `TokensBackend`, like all that follow.
        tool_parser: Finds tool calls in answers.
        reasoning: The texts that begin and end what the model thinks before it answers.
        max_remembered_tokens: How many tokens of conversations are remembered.

    Raises:
        ConfigError: When `api_base` is not a URL, a variable is not set, or transformers is missing.
    """

    engine_type = VllmEngine


class SglangTokens(ServerTokens):
    """SGLang's server, by its `/generate`; the options are those of `VllmTokens`, `api_base` with `/v1` or without."""

    engine_type = SglangEngine

    @staticmethod
    def base_of(api_base: str) -> str:
        return api_base.rstrip("/").removesuffix("/v1")


def _in_known_words(body: bytes) -> bytes:
    """Return an error with the words by which clients, and the proxy, know that a conversation is too long."""
    message = str(mapping((parse_object(body) or {}).get("error")).get("message"))
    for words in _OVERFLOWS:
        if match := words.search(message):
            known = f"This model's maximum context length is {match['most']} tokens, and the prompt has "
            return dump(openai_error(Refused(400, TOO_LONG, f"{known}{match['tokens']} input tokens: {message}")))
    return body
