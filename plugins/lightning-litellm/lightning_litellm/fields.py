"""What an agent may ask for, and in which form the library gets it.

The library takes what it is to send and where to send it from one set of arguments. What an agent says must not become
the latter: a field that is not known here is never passed on as an argument.
"""

from collections.abc import Mapping
from typing import Any

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
    "/completions": _SAMPLING | {"prompt", "suffix", "echo", "best_of", "stream", "stream_options"},
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

PATHS = tuple(_KNOWN)
"""The paths below `/v1` that are spoken."""


class UnknownField(ValueError):
    """An agent asks for what cannot be passed on."""


def arguments_of(path: str, fields: Mapping[str, Any], provider: str, allowed: frozenset[str]) -> dict[str, Any]:
    """Return the library's arguments for what an agent asked, `model` apart.

    Args:
        path: The API.
        fields: The request.
        provider: Whom it goes to.
        allowed: More fields that may be passed on, to a provider that is not like OpenAI.

    Raises:
        UnknownField: Names one that may not.
    """
    known = _KNOWN[path]
    arguments = {name: value for name, value in fields.items() if name in known}
    others = {name: value for name, value in fields.items() if name not in known and name != "model"}
    if not others:
        return arguments
    if provider in _OPENAI_LIKE or others.keys() <= allowed:
        return {**arguments, "extra_body": others}
    name = next(name for name in others if name not in allowed)
    raise UnknownField(
        f"{name!r} is not a field of /v1{path} that {provider} is known to take; leave it out, or name it in "
        "the entry's extra_fields"
    )
