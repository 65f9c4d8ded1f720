"""What a call asks of a model of tokens: each parameter is honoured, or refused by its name, and none is ignored."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lightning_proxy.request import Refused, openai_error

from lightning_core.registry import did_you_mean

MAX_CHOICES = 128

CHAT = "/chat/completions"
COMPLETIONS = "/completions"


class WrongParameter(Refused):
    """A parameter that cannot be honoured.

    Args:
        name: The parameter.
        message: What it is, and what it may be.
        kind: What is wrong with it, in one word.
    """

    def __init__(self, name: str, message: str, *, kind: str = "invalid_request") -> None:
        super().__init__(400, kind, message)
        self.name = name


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How an answer is to be sampled."""

    sampling: dict[str, Any]
    """For the engine: what was asked, by its names."""
    choices: int = 1
    stream: bool = False
    finds_tools: bool = False
    """Whether the answer may call tools."""

    def sampling_of(self, choice: int) -> dict[str, Any]:
        """Return the sampling of one of several answers: from one seed, each has its own."""
        seed = self.sampling.get("seed")
        return self.sampling if seed is None or choice == 0 else {**self.sampling, "seed": seed + choice}


def read_request(fields: Mapping[str, Any], path: str) -> SamplingParams:
    """Return what a call asks for.

    Args:
        fields: The call's; what is null counts as left out.
        path: `CHAT` or `COMPLETIONS`.

    Raises:
        WrongParameter: Names a parameter whose value is none that it can have, or that a model of tokens has not.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    neutral = _NEUTRAL_IN[path]
    for name, value in given.items():
        if name in _READ[path] or name in _WITHOUT_MEANING:
            continue
        if name in neutral:
            if value not in neutral[name] or isinstance(value, bool) is not isinstance(neutral[name][0], bool):
                raise _unsupported(name, value, f"; leave it out, or say {neutral[name][0]!r}")
        else:
            raise _unsupported(name, value, _INSTEAD.get(name) or f"; leave it out{did_you_mean(name, _READ[path])}")
    choices = _integer(given, "n", lambda number: 1 <= number <= MAX_CHOICES, f"from 1 to {MAX_CHOICES}") or 1
    stream = _flag(given, "stream")
    if stream and choices != 1:
        raise WrongParameter("n", f"n is {choices}; a stream of a model of tokens has one choice, so leave n out")
    _check_stream_options(given)
    _flag(given, "return_token_ids")
    _check_logprobs(given, path)
    return SamplingParams(_sampling(given), choices, stream, finds_tools=_finds_tools(given))


def error_of(refused: Refused) -> dict[str, Any]:
    """Return an error as OpenAI's API has it, with the parameter that it is about."""
    found = openai_error(refused)
    if isinstance(refused, WrongParameter):
        found["error"]["param"] = refused.name
    return found


def _sampling(given: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (is_good, words) in _NUMBERS.items():
        if (value := given.get(name)) is not None:
            if isinstance(value, bool) or not isinstance(value, int | float) or not is_good(value):
                raise WrongParameter(name, f"{name} is {value!r:.100}; it is a number {words}")
            found[name] = value
    for name, (is_whole, words) in _INTEGERS.items():
        if (number := _integer(given, name, is_whole, words)) is not None:
            found[name] = number
    if (most := _max_tokens(given)) is not None:
        found["max_tokens"] = most
    if (stop := given.get("stop")) is not None:
        words_of = [stop] if isinstance(stop, str) else stop
        if not isinstance(words_of, list) or not all(isinstance(word, str) and word for word in words_of):
            raise WrongParameter("stop", f"stop is {stop!r:.100}; it is a text, or a list of texts")
        found["stop"] = stop
    if (ids := given.get("stop_token_ids")) is not None:
        if not isinstance(ids, list) or not all(type(each) is int and each >= 0 for each in ids):
            raise WrongParameter("stop_token_ids", f"stop_token_ids is {ids!r:.100}; it is a list of token ids")
        found["stop_token_ids"] = ids
    if "ignore_eos" in given:
        found["ignore_eos"] = _flag(given, "ignore_eos")
    return found


def _max_tokens(given: Mapping[str, Any]) -> int | None:
    asked = {
        name: number
        for name in ("max_tokens", "max_completion_tokens")
        if (number := _integer(given, name, lambda number: number >= 1, "from 1 on")) is not None
    }
    if len(set(asked.values())) > 1:
        raise WrongParameter(
            "max_tokens",
            f"max_tokens is {asked['max_tokens']}, and max_completion_tokens {asked['max_completion_tokens']}; they "
            "mean the same, so give one of them",
        )
    return next(iter(asked.values()), None)


def _check_logprobs(given: Mapping[str, Any], path: str) -> None:
    asked = given.get("logprobs")
    if path == COMPLETIONS:
        # 1 asks for the likeliest token besides, too; most clients ask so for those of the answer's own.
        if asked is not None and asked not in (0, 1):
            raise _unsupported("logprobs", asked, ": an engine of tokens gives those of the sampled ones; say 1")
    else:
        _flag(given, "logprobs")


def _check_stream_options(given: Mapping[str, Any]) -> None:
    options = given.get("stream_options", {})
    if not isinstance(options, Mapping):
        raise WrongParameter("stream_options", f"stream_options is {options!r:.100}; it is an object")
    for name, value in options.items():
        if name not in _STREAM_OPTIONS and value:
            raise _unsupported(f"stream_options.{name}", value, "; leave it out")


def _finds_tools(given: Mapping[str, Any]) -> bool:
    tools = given.get("tools", [])
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise WrongParameter("tools", f"tools is {tools!r:.100}; it is a list of objects")
    choice = given.get("tool_choice", "auto")
    if choice == "required" or isinstance(choice, dict):
        raise _unsupported("tool_choice", choice, ": whether it calls a tool is the model's choice; say 'auto'")
    if choice not in ("auto", "none"):
        raise WrongParameter("tool_choice", f"tool_choice is {choice!r:.100}; it is 'auto' or 'none'")
    if not _flag(given, "parallel_tool_calls", default=True) and tools:
        raise _unsupported(
            "parallel_tool_calls", False, ": how many tools it calls is the model's choice; leave it out"
        )
    return bool(tools) and choice != "none"


def _flag(given: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    value = given.get(name, default)
    if not isinstance(value, bool):
        raise WrongParameter(name, f"{name} is {value!r:.100}; it is true or false")
    return value


def _integer(given: Mapping[str, Any], name: str, is_good: Callable[[int], bool], words: str) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if type(value) is not int or not is_good(value):
        raise WrongParameter(name, f"{name} is {value!r:.100}; it is a whole number {words}".rstrip())
    return value


def _unsupported(name: str, value: Any, next_step: str) -> WrongParameter:
    return WrongParameter(
        name,
        f"{name} is {value!r:.100}, which a model of tokens does not take{next_step}",
        kind="unsupported_parameter",
    )


_NUMBERS: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda value: 0 <= value < math.inf, "from 0 on"),
    "top_p": (lambda value: 0 < value <= 1, "above 0, and at most 1"),
    "min_p": (lambda value: 0 <= value <= 1, "from 0 to 1"),
    "presence_penalty": (lambda value: -2 <= value <= 2, "from -2 to 2"),
    "frequency_penalty": (lambda value: -2 <= value <= 2, "from -2 to 2"),
    "repetition_penalty": (lambda value: 0 < value < math.inf, "above 0"),
}

_INTEGERS: Mapping[str, tuple[Callable[[int], bool], str]] = {
    "top_k": (lambda value: value >= -1, "from 1 on, or -1 or 0 for all tokens"),
    "seed": (lambda value: True, ""),
}

_EVERYWHERE = frozenset(
    {
        *("model", "stream", "stream_options", "n", "logprobs", "return_token_ids"),
        *("max_tokens", "max_completion_tokens", "stop", "stop_token_ids", "ignore_eos"),
        *_NUMBERS,
        *_INTEGERS,
    }
)
_READ: Mapping[str, frozenset[str]] = {
    CHAT: _EVERYWHERE | {"messages", "tools", "tool_choice", "parallel_tool_calls"},
    COMPLETIONS: _EVERYWHERE | {"prompt"},
}

_INSTEAD = {
    "max_output_tokens": "; give max_tokens",
    "functions": "; give tools",
    "function_call": "; give tool_choice",
}
"""What to say in place of parameters of other APIs."""

_STREAM_OPTIONS = frozenset({"include_usage", "include_obfuscation"})

_WITHOUT_MEANING = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "safety_identifier", "prediction"),
        *("prompt_cache_key", "prompt_cache_retention", "cache_salt", "priority", "request_id"),
    }
)
"""Of whose it is, how fast it is, and where it is kept: an answer is the same with and without them."""

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "response_format": ({"type": "text"},),
    "logit_bias": ({},),
    "min_tokens": (0,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
}
"""What some clients always say, by what it is where it changes nothing; anything else would."""

_NEUTRAL_IN: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    CHAT: {
        **_NEUTRAL,
        "top_logprobs": (0,),
        "modalities": (["text"],),
        "chat_template_kwargs": ({},),
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
        "add_special_tokens": (False,),
    },
    COMPLETIONS: {**_NEUTRAL, "best_of": (1,), "echo": (False,), "suffix": ("",), "add_special_tokens": (True,)},
}
