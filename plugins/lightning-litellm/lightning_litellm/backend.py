"""The backend: a call of the proxy is a call of the library."""

import asyncio
import importlib
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_proxy.apis import DIALECTS
from lightning_proxy.backend import Backend, BackendAnswer, BackendRequest, TokenCounts, WholeAnswer
from lightning_proxy.jsons import dump
from lightning_proxy.openai_backend import from_environment
from lightning_proxy.request import Refused, anthropic_error, openai_error

from lightning_core.errors import ConfigError
from lightning_core.secrets import hide_in_text
from lightning_litellm.answers import StreamedAnswer, answer_of, whole

_OPENAI_LIKE = frozenset(
    {"openai", "hosted_vllm", "vllm", "sglang", "text-completion-openai", "custom_openai", "azure"}
)
"""Providers whose endpoints may know more fields than their API's; what agents ask besides goes there as it is."""

_SAMPLING = frozenset(
    {
        *("temperature", "top_p", "top_k", "stop", "seed", "n", "max_tokens", "max_completion_tokens", "logit_bias"),
        *("presence_penalty", "frequency_penalty", "logprobs", "top_logprobs", "user", "metadata", "service_tier"),
    }
)
_KNOWN: Mapping[str, frozenset[str]] = {
    "/chat/completions": _SAMPLING
    | {
        *("messages", "tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "response_format"),
        *("stream", "stream_options", "reasoning_effort", "thinking", "modalities", "audio", "prediction", "verbosity"),
        *("web_search_options", "safety_identifier", "prompt_cache_key", "store"),
    },
    "/embeddings": frozenset({"input", "dimensions", "encoding_format", "user"}),
    "/messages": frozenset(
        {
            *("messages", "max_tokens", "metadata", "stop_sequences", "stream", "system", "temperature", "thinking"),
            *("tool_choice", "tools", "top_k", "top_p", "service_tier", "output_config", "context_management"),
        }
    ),
    "/responses": frozenset(
        {
            *("input", "include", "instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "prompt"),
            *("previous_response_id", "reasoning", "store", "background", "stream", "temperature", "text", "tools"),
            *("tool_choice", "top_p", "top_logprobs", "truncation", "user", "service_tier", "safety_identifier"),
        }
    ),
}

COUNT_TOKENS = "/messages/count_tokens"

PATHS = tuple(_KNOWN)
"""The paths below `/v1` that are spoken, besides `COUNT_TOKENS`."""


def arguments_of(path: str, fields: Mapping[str, Any], provider: str, allowed: frozenset[str]) -> dict[str, Any]:
    """Return the library's arguments for what an agent asked, `model` apart.

    Args:
        path: The API.
        fields: The request.
        provider: Whom it goes to.
        allowed: More fields that may be passed on, to a provider that is not like OpenAI.

    Raises:
        Refused: Names one that may not.
    """
    known = _KNOWN[path]
    arguments = {name: value for name, value in fields.items() if name in known}
    others = {name: value for name, value in fields.items() if name not in known and name != "model"}
    if not others:
        return arguments
    if provider in _OPENAI_LIKE or others.keys() <= allowed:
        return {**arguments, "extra_body": others}
    name = next(name for name in others if name not in allowed)
    message = f"{name!r} is not a field of /v1{path} that {provider} is known to take; leave it out, or name it in"
    raise Refused(400, "unknown_field", f"{message} the entry's extra_fields")


_lock = threading.Lock()


def imported() -> Any:
    """Return the module, importing it where that has not happened yet."""
    with _lock:
        # Without this it asks the network for prices while it is imported; those that it ships are read instead.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        litellm: Any = importlib.import_module("litellm")
        litellm.suppress_debug_info = True  # it prints advice to stdout for each error
        # Anthropic's API in front of others is made of their chat API, which all of them have.
        litellm.use_chat_completions_url_for_anthropic_messages = True
        return litellm


async def library() -> Any:
    """Return the module. The first time it is imported in a thread, so that other calls go on."""
    return await asyncio.to_thread(imported)


async def close_connections(litellm: Any) -> None:
    """Close the connections that the library keeps, and end what it does in the background."""
    logging_worker: Any = importlib.import_module("litellm.litellm_core_utils.logging_worker")
    await litellm.close_litellm_async_clients()
    await logging_worker.GLOBAL_LOGGING_WORKER.stop()


_GIVE_TOKENS = frozenset({"hosted_vllm", "vllm"})
_HAVE_RESPONSES = frozenset({"openai", "azure"})
_FUNCTIONS = {
    "/chat/completions": "acompletion",
    "/embeddings": "aembedding",
    "/messages": "anthropic_messages",
    "/responses": "aresponses",
}

_VLLM_VARIABLE = "HOSTED_VLLM_API_BASE"
"""Where the library finds the server of `hosted_vllm` that no `api_base` names."""

_in_use: set["LitellmBackend"] = set()
"""Those that have made a call, and are not closed."""


class LitellmBackend(Backend):
    """Makes calls through the litellm library: any provider, and APIs that an endpoint does not speak itself.

    The library is imported with the first call.

    Args:
        model: Its name with the provider's prefix, such as `anthropic/claude-sonnet-4-5` or `gemini/gemini-2.5-pro`.
        api_base: The endpoint; None for the provider's own.
        api_key: What to say to it; `os.environ/NAME` for a variable. None for the one that the provider is known to
            have.
        timeout: Seconds that a call may take; from one piece to the next where it is streamed.
        return_token_ids: Whether the endpoint knows `return_token_ids`; None for what is known of the provider.
        extra_fields: Fields that agents may send besides those of the API.
        drop_params: Whether what a provider does not know is left out; else such a call is refused.
        use_chat_completions_api: Whether the Responses API is made of the chat API; None for where the provider is
            not known to have it.
        api_version: Of the provider's API, where it has versions.
        params: More arguments of the library for this provider, such as `aws_region_name` or `vertex_project`.

    Raises:
        ConfigError: When the model has no provider, a `hosted_vllm` has no `api_base`, or the variable of the key is
            not set.
    """

    def __init__(
        self,
        model: str,
        api_base: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 600.0,
        return_token_ids: bool | None = None,
        extra_fields: Sequence[str] = (),
        drop_params: bool = False,
        use_chat_completions_api: bool | None = None,
        api_version: str | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        provider, slash, name = model.partition("/")
        if not slash or not provider or not name:
            raise ConfigError(
                f"model is {model!r}; it begins with the provider, as litellm has it: anthropic/{model or 'NAME'}"
            )
        given = {"api_base": api_base, "api_key": api_key, "api_version": api_version}
        self._options: dict[str, Any] = {
            **(params or {}),
            **{name: from_environment(name, value) for name, value in given.items() if value is not None},
            "timeout": timeout,
            "drop_params": drop_params,
            "num_retries": 0,  # the proxy tries again, and counts it
            "max_retries": 0,
        }
        address = {"api_base", "base_url"} & self._options.keys()
        if provider == "hosted_vllm" and not address and not os.environ.get(_VLLM_VARIABLE):
            raise ConfigError(
                f"model {model!r} has no api_base, and would go to OpenAI; give the URL of your server, as "
                f"http://127.0.0.1:8000/v1, or set {_VLLM_VARIABLE}"
            )
        self._model = model
        at = hide_in_text(f" at {self._options['api_base']}") if "api_base" in self._options else ""
        self._where = f"{self.address}{at}"
        self._provider = provider
        self._extra_fields = frozenset(extra_fields)
        native = provider in _HAVE_RESPONSES and api_base is None
        self._is_chat_only = not native if use_chat_completions_api is None else use_chat_completions_api
        self.gives_tokens = provider in _GIVE_TOKENS if return_token_ids is None else return_token_ids

    @property
    def address(self) -> str:
        return f"litellm {self._model}"

    def cost(self, tokens: TokenCounts) -> float | None:
        if tokens.input is None and tokens.output is None:
            return None
        library = imported()
        written, for_an_hour = tokens.written or 0, tokens.written_for_an_hour or 0
        kept = {"ephemeral_5m_input_tokens": max(0, written - for_an_hour), "ephemeral_1h_input_tokens": for_an_hour}
        details = {"cached_tokens": tokens.cached or 0, "cache_creation_tokens": written}
        try:
            usage = library.Usage(
                prompt_tokens=tokens.input or 0,
                completion_tokens=tokens.output or 0,
                prompt_tokens_details={**details, "cache_creation_token_details": kept},
                cache_read_input_tokens=tokens.cached or 0,
                cache_creation_input_tokens=written,
            )
            prompt, completion = library.cost_per_token(model=self._model, usage_object=usage)
        except Exception:  # its way to say that it knows no price
            return None
        return float(prompt) + float(completion) or None

    async def send(self, request: BackendRequest) -> BackendAnswer:
        path, fields = request.path, request.fields
        if request.method == "POST" and path == COUNT_TOKENS and fields is not None:
            return await self._count_tokens(fields)
        if request.method != "POST" or path not in PATHS or fields is None:
            served = ", ".join(f"/v1{each}" for each in (*PATHS, COUNT_TOKENS))
            refused = Refused(404, "unknown_path", f"{self.address} serves {served}; got {request.method} /v1{path}")
            return WholeAnswer(404, dump(openai_error(refused)))
        try:
            arguments = arguments_of(path, fields, self._provider, self._extra_fields)
        except Refused as exc:
            return WholeAnswer(exc.status, dump(DIALECTS[path].error(exc)))
        if path == "/responses" and self._is_chat_only:
            arguments["use_chat_completions_api"] = True
        _in_use.add(self)
        module = await library()
        try:
            answer = await getattr(module, _FUNCTIONS[path])(**arguments, model=self._model, **self._options)
        except Exception as exc:
            return answer_of(exc, path, self._where, module)
        if fields.get("stream") is True:
            return StreamedAnswer(answer, path, self._where, module)
        return WholeAnswer(200, whole(answer))

    async def _count_tokens(self, fields: Mapping[str, Any]) -> WholeAnswer:
        """Answer how many tokens a prompt has: by the provider, or else by what the library knows of its tokens."""
        where = {name: self._options[name] for name in ("api_base", "api_key") if name in self._options}
        prompt = {name: fields[name] for name in ("messages", "system", "tools") if name in fields}
        if not prompt.get("messages"):
            return _refused("messages is missing, or empty; it is what is to be counted")
        _in_use.add(self)
        module = await library()
        try:
            counted = await module.acount_tokens(model=self._model, **prompt, **where)
        except Exception as exc:  # of whatever kind: it asks the provider alone, whose errors it does not raise
            return _refused(f"the tokens cannot be counted: {hide_in_text(str(exc) or type(exc).__name__)}")
        return WholeAnswer(200, dump({"input_tokens": counted.total_tokens}))

    async def aclose(self) -> None:
        """Let go of connections, once the last of these backends has ended: the library keeps them for all."""
        if self in _in_use:
            _in_use.remove(self)
            if not _in_use:
                await close_connections(await library())


def _refused(message: str) -> WholeAnswer:
    return WholeAnswer(400, dump(anthropic_error(Refused(400, "invalid_request", message))))
