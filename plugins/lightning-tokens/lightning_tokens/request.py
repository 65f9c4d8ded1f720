"""What a call asks of a model of tokens: what is honoured, what is only a hint, and what is refused by its name."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from lightning_proxy.answer import mapping
from lightning_proxy.request import Refused, openai_error
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from lightning_core.registry.options import wanted_of

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


def read_request(fields: Mapping[str, Any], path: str, *, takes: Collection[str] = ()) -> SamplingParams:
    """Return what a call asks for.

    Args:
        fields: The call's; what is null counts as left out.
        path: `CHAT` or `COMPLETIONS`.
        takes: What the engine takes besides, as `TokenEngine` says it.

    Raises:
        WrongParameter: Names a parameter with an impossible value, or one without which the answer would mean
            something else.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    asked = _asked(given)
    passed = frozenset(takes) - {JSON_SCHEMA}  # which is not a parameter of any request
    ignored = _ignored(given, path, passed)
    choice = given.get("tool_choice", "auto")
    schema, is_forced = None, False
    if path == CHAT:
        schema, is_forced, unmet = _schema(given, asked.tools, choice, takes)
        ignored += unmet
        if not asked.parallel_tool_calls and asked.tools:
            ignored.append("parallel_tool_calls")
    if asked.stream and asked.n != 1:
        raise WrongParameter("n", f"n is {asked.n}; a stream of a model of tokens has one choice, so leave n out")
    _check_logprobs(given, path)
    sampling = _sampling(asked) | {name: given[name] for name in given if name in passed}
    return SamplingParams(
        sampling if schema is None else {**sampling, JSON_SCHEMA: schema},
        asked.n,
        asked.stream,
        finds_tools=path == CHAT and bool(asked.tools) and choice != "none",
        is_forced=is_forced,
        template_options=_template_options(asked) if path == CHAT else {},
        ignored=tuple(ignored),
    )


def is_hint(name: str) -> bool:
    """Tell whether an answer without this parameter is as good an answer."""
    return name in _WITHOUT_MEANING or name in _HINTS


def error_of(refused: Refused) -> dict[str, Any]:
    """Return an error as OpenAI's API has it, with the parameter that it is about."""
    error = openai_error(refused)
    if isinstance(refused, WrongParameter):
        error["error"]["param"] = refused.name
    return error


_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Words = Annotated[str, Field(min_length=1)]


class _Asked(BaseModel):
    """What is read of a call, by the names of OpenAI's API and vLLM's."""

    model_config = ConfigDict(strict=True)

    temperature: Annotated[_Finite, Field(ge=0)] = 1.0
    top_p: Annotated[_Finite, Field(gt=0, le=1)] = 1.0
    min_p: Annotated[_Finite, Field(ge=0, le=1)] = 0.0
    presence_penalty: Annotated[_Finite, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[_Finite, Field(ge=-2, le=2)] = 0.0
    repetition_penalty: Annotated[_Finite, Field(gt=0)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = -1
    seed: int = 0
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    stop: _Words | list[_Words] = ""
    stop_token_ids: list[NonNegativeInt] = []
    ignore_eos: bool = False
    n: Annotated[int, Field(ge=1, le=128)] = 1
    stream: bool = False
    stream_options: dict[str, Any] = {}
    return_token_ids: bool = False
    tools: list[dict[str, Any]] = []
    parallel_tool_calls: bool = True
    chat_template_kwargs: dict[str, Any] = {}


_SAMPLING = tuple(_Asked.model_fields)[: tuple(_Asked.model_fields).index("n")]
"""Those that an engine is given."""


def _asked(given: Mapping[str, Any]) -> _Asked:
    try:
        return _Asked.model_validate(given)
    except ValidationError as exc:
        errors = exc.errors(include_url=False)
        name = str(errors[0]["loc"][0])
        wanted = wanted_of(error for error in errors if error["loc"][0] == name)
        raise WrongParameter(name, f"{name} is {given[name]!r:.100}; {wanted}") from None


def _sampling(asked: _Asked) -> dict[str, Any]:
    sampling = {name: getattr(asked, name) for name in _SAMPLING if name in asked.model_fields_set}
    most = sampling.pop("max_completion_tokens", None)
    if most is not None and sampling.setdefault("max_tokens", most) != most:
        raise WrongParameter(
            "max_tokens",
            f"max_tokens is {sampling['max_tokens']}, and max_completion_tokens {most}; they mean the same, say one",
        )
    return sampling


def _check_logprobs(given: Mapping[str, Any], path: str) -> None:
    asked = given.get("logprobs", False)
    # For completions 1 asks for the likeliest token besides, too; most clients ask so for those of the answer's own.
    if asked not in (0, 1) or (path == CHAT and not isinstance(asked, bool)):
        say = "true" if path == CHAT else "1"
        raise _unsupported("logprobs", asked, f": an engine of tokens gives those of the sampled ones; say {say}")


def _ignored(given: Mapping[str, Any], path: str, takes: Collection[str]) -> list[str]:
    """Return what neither this module reads nor the engine takes; refuse what would give another answer."""
    neutral, ignored = _NEUTRAL_IN[path], []
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
            ignored.append(name)
    return ignored


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
        schema = _schema_of_calls(tools, name) if is_known and JSON_SCHEMA in takes else None
        return schema, schema is not None, [] if schema is not None else ["tool_choice"]
    if choice not in ("auto", "none"):
        known = "'auto', 'none', 'required' or a function"
        raise WrongParameter("tool_choice", f"tool_choice is {choice!r:.100}; it is {known}")
    wanted = mapping(given.get("response_format"))
    kind = wanted.get("type", "text")
    if kind == "text":
        return None, False, []
    schema = {"type": "object"} if kind == "json_object" else mapping(wanted.get("json_schema")).get("schema")
    if kind == "json_schema" and not isinstance(schema, dict):
        raise WrongParameter("response_format", f"response_format is {wanted!r:.100}; json_schema.schema is an object")
    # A schema would keep the model from calling the tools that it is offered.
    if JSON_SCHEMA not in takes or kind not in ("json_object", "json_schema") or (tools and choice == "auto"):
        return None, False, ["response_format"]
    return schema, False, []


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


def _template_options(asked: _Asked) -> Mapping[str, Any]:
    options = asked.chat_template_kwargs
    if names := sorted(options.keys() & _TEMPLATES_OWN):
        message = f"chat_template_kwargs has {names[0]!r}, which the agent cannot set; leave it out"
        raise WrongParameter("chat_template_kwargs", message)
    return options


def _unsupported(name: str, value: Any, next_step: str) -> WrongParameter:
    return WrongParameter(
        name,
        f"{name} is {value!r:.100}, which a model of tokens does not take{next_step}",
        kind="unsupported_parameter",
    )


_OF_CHAT = frozenset({"tools", "parallel_tool_calls", "chat_template_kwargs"})
_READ: Mapping[str, frozenset[str]] = {
    CHAT: frozenset({"model", "logprobs", "messages", "tool_choice", "response_format", *_Asked.model_fields}),
    COMPLETIONS: frozenset({"model", "logprobs", "prompt", *_Asked.model_fields}) - _OF_CHAT,
}

_INSTEAD = {"functions": "; give tools", "function_call": "; give tool_choice"}
"""What to say in place of older parameters."""

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
