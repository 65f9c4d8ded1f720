"""What a call asks of a model of tokens: what is honoured, what is only a hint, and what is refused by its name."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_proxy.answer import mapping
from lightning_proxy.request import Refused, openai_error

from lightning_core.registry import did_you_mean

MAX_CHOICES = 128

CHAT = "/chat/completions"
COMPLETIONS = "/completions"

JSON_SCHEMA = "json_schema"
"""The name under which an engine takes the JSON schema that an answer is to have."""


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
    is_forced: bool = False
    """Whether the answer is the JSON of one tool call."""
    template_options: Mapping[str, Any] = field(default_factory=dict)
    """For the chat template."""
    ignored: tuple[str, ...] = ()
    """The names of the parameters that change nothing here."""

    def sampling_of(self, choice: int) -> dict[str, Any]:
        """Return the sampling of one of several answers: from one seed, each has its own."""
        seed = self.sampling.get("seed")
        return self.sampling if seed is None or choice == 0 else {**self.sampling, "seed": seed + choice}


def read_request(
    fields: Mapping[str, Any], path: str, *, takes: Collection[str] = (), strict: bool = False
) -> SamplingParams:
    """Return what a call asks for.

    Args:
        fields: The call's; what is null counts as left out.
        path: `CHAT` or `COMPLETIONS`.
        takes: What the engine takes besides, as `TokenEngine` says it.
        strict: Whether a parameter that would be ignored is refused.

    Raises:
        WrongParameter: Names a parameter with an impossible value, or one without which the answer would mean
            something else.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    passed = frozenset(takes) - {JSON_SCHEMA}  # which is not a parameter of any request
    ignored = _ignored(given, path, passed)
    tools, choice = _tools(given), given.get("tool_choice", "auto")
    schema, is_forced = None, False
    if path == CHAT:
        schema, is_forced, unmet = _schema(given, tools, choice, takes)
        ignored += unmet
        if not _flag(given, "parallel_tool_calls", default=True) and tools:
            ignored.append("parallel_tool_calls")
    if strict and (refused := [name for name in ignored if name not in _WITHOUT_MEANING]):
        name = refused[0]
        next_step = f"; leave it out{did_you_mean(name, _READ[path])}"
        raise _unsupported(name, given.get(name), _INSTEAD.get(name) or next_step)
    choices = _integer(given, "n", lambda number: 1 <= number <= MAX_CHOICES, f"from 1 to {MAX_CHOICES}") or 1
    stream = _flag(given, "stream")
    if stream and choices != 1:
        raise WrongParameter("n", f"n is {choices}; a stream of a model of tokens has one choice, so leave n out")
    _check_stream_options(given)
    _flag(given, "return_token_ids")
    _check_logprobs(given, path)
    sampling = _sampling(given) | {name: given[name] for name in given if name in passed}
    return SamplingParams(
        sampling if schema is None else {**sampling, JSON_SCHEMA: schema},
        choices,
        stream,
        finds_tools=path == CHAT and bool(tools) and choice != "none",
        is_forced=is_forced,
        template_options=_template_options(given) if path == CHAT else {},
        ignored=tuple(ignored),
    )


def is_hint(name: str) -> bool:
    """Tell whether an answer without this parameter is as good an answer."""
    return name in _WITHOUT_MEANING or name in _HINTS


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


def _ignored(given: Mapping[str, Any], path: str, takes: Collection[str]) -> list[str]:
    """Return what neither this module reads nor the engine takes; refuse what would give another answer."""
    neutral, found = _NEUTRAL_IN[path], []
    for name, value in given.items():
        if name in _READ[path] or name in takes:
            continue
        # 1 == True, but a flag is not one of these numbers.
        same = [value == one and isinstance(value, bool) is isinstance(one, bool) for one in neutral.get(name, ())]
        is_neutral = any(same)
        if name in _OTHER_ANSWER and not is_neutral:
            otherwise = f", or say {neutral[name][0]!r}" if name in neutral else ""
            raise _unsupported(name, value, _INSTEAD.get(name, f"; leave it out{otherwise}"))
        if not is_neutral:
            found.append(name)
    return found


def _tools(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    tools = given.get("tools", [])
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise WrongParameter("tools", f"tools is {tools!r:.100}; it is a list of objects")
    return tools


def _schema(
    given: Mapping[str, Any], tools: Sequence[Mapping[str, Any]], choice: Any, takes: Collection[str]
) -> tuple[dict[str, Any] | None, bool, list[str]]:
    """Return the JSON schema of the answer, whether it is that of a tool call, and which parameters ask in vain."""
    if choice == "required" or isinstance(choice, dict):
        name = mapping(choice.get("function")).get("name") if isinstance(choice, dict) else None
        names = [mapping(tool.get("function")).get("name") for tool in tools]
        if not tools or (name is not None and name not in names):
            raise WrongParameter("tool_choice", f"tool_choice is {choice!r:.100}; tools has no such function: {names}")
        is_known = choice == "required" or name is not None
        found = _schema_of_calls(tools, name) if is_known and JSON_SCHEMA in takes else None
        return found, found is not None, [] if found is not None else ["tool_choice"]
    if choice not in ("auto", "none"):
        known = "'auto', 'none', 'required' or a function"
        raise WrongParameter("tool_choice", f"tool_choice is {choice!r:.100}; it is {known}")
    wanted = mapping(given.get("response_format"))
    kind = wanted.get("type", "text")
    if kind == "text":
        return None, False, []
    found = {"type": "object"} if kind == "json_object" else mapping(wanted.get("json_schema")).get("schema")
    if kind == "json_schema" and not isinstance(found, dict):
        raise WrongParameter("response_format", f"response_format is {wanted!r:.100}; json_schema.schema is an object")
    # A schema would keep the model from calling the tools that it is offered.
    if JSON_SCHEMA not in takes or kind not in ("json_object", "json_schema") or (tools and choice == "auto"):
        return None, False, ["response_format"]
    return found, False, []


def _schema_of_calls(tools: Sequence[Mapping[str, Any]], name: str | None) -> dict[str, Any] | None:
    """Return the schema of one call, of any tool or of one; None where the tools' definitions contradict each other."""
    calls: list[dict[str, Any]] = []
    definitions: dict[str, dict[str, Any]] = {}
    for function in (mapping(tool.get("function")) for tool in tools):
        if function.get("name") is None or name not in (None, function["name"]):
            continue
        parameters = mapping(function.get("parameters")) or {"type": "object"}
        for place in ("$defs", "definitions"):  # references to them count from the root
            for each, form in mapping(parameters.get(place)).items():
                if definitions.setdefault(place, {}).setdefault(each, form) != form:
                    return None
        arguments = {key: value for key, value in parameters.items() if key not in definitions}
        properties = {"name": {"type": "string", "enum": [function["name"]]}, "arguments": arguments}
        required = list(properties)
        calls.append({"type": "object", "properties": properties, "required": required, "additionalProperties": False})
    return None if not calls else {**(calls[0] if len(calls) == 1 else {"anyOf": calls}), **definitions}


def _template_options(given: Mapping[str, Any]) -> Mapping[str, Any]:
    options = given.get("chat_template_kwargs", {})
    if not isinstance(options, Mapping):
        raise WrongParameter("chat_template_kwargs", f"chat_template_kwargs is {options!r:.100}; it is an object")
    if own := sorted(options.keys() & _TEMPLATES_OWN):
        message = f"chat_template_kwargs has {own[0]!r}, which the agent cannot set; leave it out"
        raise WrongParameter("chat_template_kwargs", message)
    return options


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
    CHAT: _EVERYWHERE
    | {"messages", "tools", "tool_choice", "parallel_tool_calls", "response_format", "chat_template_kwargs"},
    COMPLETIONS: _EVERYWHERE | {"prompt"},
}

_INSTEAD = {
    "max_output_tokens": "; give max_tokens",
    "functions": "; give tools",
    "function_call": "; give tool_choice",
}
"""What to say in place of parameters of other APIs."""

_OTHER_ANSWER = frozenset(
    {
        *("top_logprobs", "prompt_logprobs", "modalities", "audio", "functions", "function_call"),
        *("add_generation_prompt", "continue_final_message", "echo", "suffix", "best_of"),
    }
)
"""Without them the answer would have other parts, or mean something else."""

_TEMPLATES_OWN = frozenset(
    {"chat_template", "conversation", "tools", "tokenize", "add_generation_prompt", "continue_final_message"}
)

_HINTS = frozenset({"parallel_tool_calls", "reasoning_effort", "verbosity"})
_WITHOUT_MEANING = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "safety_identifier", "prediction"),
        *("prompt_cache_key", "prompt_cache_retention", "cache_salt", "priority", "request_id"),
    }
)
"""Of whose it is, how fast it is, and where it is kept: an answer is the same with and without them."""

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
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
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
        "add_special_tokens": (False,),
    },
    COMPLETIONS: {**_NEUTRAL, "best_of": (1,), "echo": (False,), "suffix": ("",), "add_special_tokens": (True,)},
}
