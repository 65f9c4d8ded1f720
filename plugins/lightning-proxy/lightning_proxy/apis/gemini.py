"""Gemini's API, `/v1beta/models/{model}:generateContent` and `:streamGenerateContent`, as chat.

A request is made one of chat as soon as it comes, so all else of the proxy sees chat; the answer is made Gemini's. No
backend is asked in this API.
"""

import re
import secrets
from collections.abc import Mapping, Set
from typing import Any
from urllib.parse import parse_qs

from lightning_proxy.answer import mapping
from lightning_proxy.apis.base import Fields
from lightning_proxy.apis.chat import ChatDialect
from lightning_proxy.apis.conversion import (
    NOT_CONVERTIBLE,
    Block,
    ChatStream,
    ConvertibleDialect,
    Step,
    Turn,
    arguments_object,
    arguments_text,
    content_of,
    function_tool,
    messages_of,
    named_objects,
    require_known,
    seal,
    text_at,
    unconvertible,
    unseal,
)
from lightning_proxy.jsons import text
from lightning_proxy.request import Refused, invalid

_PATH = re.compile(r"/(?:models/)?([^:]+):(generateContent|streamGenerateContent)")
_OWN = "gemini"
"""Under this name a request of chat has what only this API knows."""
_NOT_SENT = frozenset({_OWN, "safety_settings", "thinking", "reasoning"})
"""What is recorded, and no engine is asked."""

_REQUEST = frozenset(
    {
        *("contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "model"),
        *("safetySettings", "labels", "serviceTier", "store"),
    }
)
_SAME = {
    "temperature": "temperature",
    "topP": "top_p",
    "topK": "top_k",
    "maxOutputTokens": "max_tokens",
    "stopSequences": "stop",
    "seed": "seed",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
}
_SCHEMAS = ("responseJsonSchema", "responseSchema")
_CONFIG = frozenset(
    {
        *(*_SAME, *_SCHEMAS),
        *("responseMimeType", "responseModalities", "candidateCount", "thinkingConfig", "mediaResolution"),
    }
)
_MODES = {"AUTO": "auto", "MODE_UNSPECIFIED": "auto", "VALIDATED": "auto", "ANY": "required", "NONE": "none"}
_DECLARATION = frozenset(
    {
        *("name", "description", "parameters", "parametersJsonSchema"),
        *("response", "responseJsonSchema", "behavior"),  # which no model sees
    }
)
_BOUNDS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
_NO_SCHEMA = frozenset({"nullable", "propertyOrdering", "example"})
_REASONS = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    402: "FAILED_PRECONDITION",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class GeminiDialect(ConvertibleDialect, ChatDialect):
    """Contents of parts in, candidates out."""

    path = "/models:generateContent"
    provider = "gcp.gemini"
    is_always_converted = True

    def serves(self, below: str) -> bool:
        return _PATH.fullmatch(below) is not None

    def read_request(self, fields: Fields, below: str, query: str) -> Fields:
        match = _PATH.fullmatch(below)
        assert match is not None
        given = _object(fields, _REQUEST)
        extras: Fields = {"hosted_tools": []}
        chat: Fields = {"model": match[1], _OWN: extras}
        if match[2] == "streamGenerateContent":
            if parse_qs(query).get("alt") != ["sse"]:
                raise invalid("streamGenerateContent gives events alone; add ?alt=sse, as Google's clients do")
            chat["stream"] = True
        chat["messages"] = [*_system(given.get("systemInstruction")), *_messages(given.get("contents"))]
        tools = _tools(given.get("tools"), extras["hosted_tools"])
        chat.update(_tool_choice(mapping(given.get("toolConfig")), tools))
        chat.update(_config(_at(given, "generationConfig", _CONFIG), extras))
        if given.get("safetySettings"):
            chat["safety_settings"] = given["safetySettings"]
        return chat

    def without_hosted_tools(self, fields: Fields) -> tuple[Fields, list[str]]:
        return fields, fields[_OWN]["hosted_tools"]

    def overflow(self, message: str, tokens: int, most: int, fields: Fields) -> str:
        return f"The input token count ({tokens}) exceeds the maximum number of tokens allowed ({most})."

    def to_chat(self, fields: Fields) -> Fields:
        return {name: value for name, value in fields.items() if name not in _NOT_SENT}

    def stream(self, request: Fields) -> ChatStream:
        return _GeminiStream(request)

    def error(self, refused: Refused) -> Fields:
        status = _STATUSES.get(refused.status, "INVALID_ARGUMENT" if refused.status < 500 else "INTERNAL")
        message = f"{refused.message} ({refused.kind})"
        return {"error": {"code": refused.status, "message": message, "status": status}}


# From contents to chat


def _object(given: Mapping[str, Any], known: Set[str], name: str = "") -> Fields:
    """Return an object by the names that Google's JSON has, of which it takes both spellings."""
    found = {re.sub("_([a-z])", lambda at: at[1].upper(), key): each for key, each in given.items() if each is not None}
    require_known(found, known, name)
    return found


def _at(given: Fields, field_name: str, known: Set[str], name: str = "") -> Fields:
    value, where = given.get(field_name, {}), f"{name}.{field_name}" if name else field_name
    if not isinstance(value, dict):
        raise invalid(f"{where} is {value!r:.100}; it is an object")
    return _object(value, known, where)


def _system(given: Any) -> list[Fields]:
    content = {"parts": [{"text": given}]} if isinstance(given, str) else mapping(given)
    parts = [
        {"type": "text", "text": text_at(part, "text", where)} for where, part in _parts(content, "systemInstruction")
    ]
    return [{"role": "system", "content": content_of(parts)}] if parts else []


def _parts(content: Fields, name: str) -> list[tuple[str, Fields]]:
    """Return the parts of a content with their names, each without what no model sees."""
    require_known(content, {"role", "parts"}, name)
    known = {"text", "thought", "thoughtSignature", "functionCall", "functionResponse", "inlineData", "fileData"}
    return [
        (where, _object(part, known, where)) for where, part in named_objects(content.get("parts"), f"{name}.parts")
    ]


def _messages(contents: Any) -> list[Fields]:
    messages: list[Fields | Turn] = []
    open_calls: list[tuple[str, str]] = []
    """Ids and names of the calls that have no result yet."""
    count = 0
    for name, content in named_objects(contents, "contents"):
        parts = []
        turn = messages[-1] if messages and isinstance(messages[-1], Turn) else Turn()
        is_models = content.get("role") == "model"
        if is_models and turn not in messages:  # else a stream, which clients keep in several contents
            messages.append(turn)
        for where, part in _parts(content, name):
            if is_models:
                count += "functionCall" in part
                _add_to_turn(turn, part, where, f"call_{count}", open_calls)
            elif "functionResponse" in part:
                messages.append(_result(_at(part, "functionResponse", _RESPONSE, where), where, open_calls))
            else:
                parts.append(_part(part, where))
        if parts:
            messages.append({"role": "user", "content": content_of(parts)})
    if not messages or isinstance(messages[-1], Turn):
        raise invalid("contents do not end with what the model is to answer")
    return messages_of(messages)


_CALL = frozenset({"id", "name", "args"})
_RESPONSE = frozenset({"id", "name", "response", "willContinue", "scheduling"})


def _add_to_turn(turn: Turn, part: Fields, name: str, call_id: str, open_calls: list[tuple[str, str]]) -> None:
    """Add a part of the model to its message."""
    if thought := unseal(part.get("thoughtSignature")):
        turn.reasoning.append(thought)
    if "functionCall" in part:
        called = _at(part, "functionCall", _CALL, name)
        call_id, function = str(called.get("id") or call_id), text_at(called, "name", name)
        turn.add_call(call_id, function, arguments_text(called.get("args")))
        open_calls.append((call_id, function))
    elif "text" in part:
        (turn.shown if part.get("thought") else turn.texts).append(text_at(part, "text", name))
    elif "thoughtSignature" not in part:
        raise unconvertible(name, f"has {', '.join(part) or 'nothing'}; an answer has text and functionCall")


def _result(response: Fields, name: str, open_calls: list[tuple[str, str]]) -> Fields:
    given_id, function = response.get("id"), text_at(response, "name", f"{name}.functionResponse")
    answered = next((call for call in open_calls if given_id in (None, call[0]) and call[1] == function), None)
    if answered is None:
        raise invalid(f"{name} answers {function!r:.100}, which the model did not call before")
    open_calls.remove(answered)
    result = response.get("response")
    if isinstance(result, dict) and (result.keys() == {"output"} or result.keys() == {"result"}):
        (result,) = result.values()  # Google's clients put what a function returned under one of these names
    content = result if isinstance(result, str) else text(result)
    return {"role": "tool", "tool_call_id": answered[0], "content": content}


def _part(part: Fields, name: str) -> Fields:
    if "text" in part:
        return {"type": "text", "text": text_at(part, "text", name)}
    for field_name, known in (("inlineData", "data"), ("fileData", "fileUri")):
        if field_name in part:
            data = _at(part, field_name, {"mimeType", "displayName", known}, name)
            kind, given = str(data.get("mimeType")), text_at(data, known, f"{name}.{field_name}")
            if not kind.startswith("image/"):
                raise unconvertible(f"{name}.{field_name}.mimeType", f"is {kind!r:.100}; send text or an image")
            url = given if known == "fileUri" else f"data:{kind};base64,{given}"
            return {"type": "image_url", "image_url": {"url": url}}
    raise unconvertible(name, f"has {', '.join(part) or 'nothing'}; send text or an image")


def _tools(groups: Any, hosted: list[str]) -> list[Fields]:
    """Return the functions of tools; the names of the others are added to `hosted`."""
    functions = []
    for name, group in named_objects(groups, "tools"):
        hosted += [each for each in group if group[each] is not None and each not in _FUNCTIONS]
        given = next((group[each] for each in _FUNCTIONS if each in group), None)
        for where, function in named_objects(given, f"{name}.functionDeclarations"):
            declared = _object(function, _DECLARATION, where)
            if "parametersJsonSchema" not in declared:
                declared["parametersJsonSchema"] = _json_schema(declared.get("parameters"))
            functions.append(function_tool(declared, where, parameters="parametersJsonSchema"))
    return functions


_FUNCTIONS = ("functionDeclarations", "function_declarations")


def _tool_choice(config: Fields, tools: list[Fields]) -> Fields:
    """Return chat's `tools` and `tool_choice`. Where only some may be called, the others are left out."""
    calling = _at(
        _object(config, {"functionCallingConfig", "retrievalConfig", "includeServerSideToolInvocations"}),
        "functionCallingConfig",
        {"mode", "allowedFunctionNames", "streamFunctionCallArguments"},
        "toolConfig",
    )
    mode, allowed = calling.get("mode", "AUTO"), calling.get("allowedFunctionNames") or []
    if mode not in _MODES:
        modes = ", ".join(_MODES)
        message = f"toolConfig.functionCallingConfig.mode is {mode!r:.100}; it is one of {modes}"
        raise invalid(message)
    if allowed and mode != "NONE":
        tools = [tool for tool in tools if tool["function"]["name"] in allowed]
    if not tools:
        return {}
    choice: Any = _MODES[mode]
    if choice == "required" and len(allowed) == 1:
        choice = {"type": "function", "function": {"name": allowed[0]}}
    return {"tools": tools} | ({} if choice == "auto" else {"tool_choice": choice})


def _config(config: Fields, extras: Fields) -> Fields:
    chat = {ours: config[theirs] for theirs, ours in _SAME.items() if theirs in config}
    if config.get("candidateCount", 1) != 1:
        raise unconvertible("generationConfig.candidateCount", "asks for several answers; ask for one")
    if [each for each in config.get("responseModalities") or () if each != "TEXT"]:
        raise unconvertible("generationConfig.responseModalities", "asks for other things than text; say TEXT")
    kind = config.get("responseMimeType", "text/plain")
    schema = config.get("responseJsonSchema", _json_schema(config.get("responseSchema")))
    if kind not in ("text/plain", "application/json"):
        raise unconvertible(
            "generationConfig.responseMimeType", f"is {kind!r:.100}; it is text/plain or application/json"
        )
    if schema is not None:
        wanted = {"name": "answer", "schema": schema, "strict": True}
        chat["response_format"] = {"type": "json_schema", "json_schema": wanted}
    elif kind == "application/json":
        chat["response_format"] = {"type": "json_object"}
    thinking = _at(config, "thinkingConfig", {"includeThoughts", "thinkingBudget", "thinkingLevel"}, "generationConfig")
    extras["includes_thoughts"] = thinking.get("includeThoughts") is True
    if "thinkingBudget" in thinking:
        chat["thinking"] = {"budget_tokens": thinking["thinkingBudget"]}
    if "thinkingLevel" in thinking:
        chat["reasoning"] = {"effort": str(thinking["thinkingLevel"]).lower()}
    return chat


def _json_schema(schema: Any) -> Any:
    """Return Gemini's `Schema`, whose types are in capitals, as a JSON schema."""
    if not isinstance(schema, dict):
        return schema
    given = {re.sub("_([a-z])", lambda at: at[1].upper(), key): each for key, each in schema.items()}
    found: Fields = {}
    for name, value in given.items():
        if value is None or name in _NO_SCHEMA or (name, value) == ("format", "enum"):
            continue
        if name == "type" and isinstance(value, str):
            if value != "TYPE_UNSPECIFIED":
                found[name] = value.lower()
        elif name in ("properties", "$defs") and isinstance(value, dict):
            found[name] = {key: _json_schema(each) for key, each in value.items()}
        elif isinstance(value, list) and name in ("anyOf", "prefixItems"):
            found[name] = [_json_schema(each) for each in value]
        elif name in ("items", "additionalProperties"):
            found[name] = _json_schema(value)
        else:
            found[name] = int(value) if name in _BOUNDS and str(value).isdecimal() else value
    if given.get("nullable") is True and isinstance(found.get("type"), str):
        found["type"] = [found["type"], "null"]
    return found


# From chat to candidates


class _GeminiStream(ChatStream):
    def __init__(self, request: Fields) -> None:
        super().__init__(request, secrets.token_hex(12))
        self._signed = 0
        """How many blocks were gone through for the thoughts that a signature has."""

    def events(self, step: Step) -> list[Fields]:
        block = step.block
        if block.kind == "call":
            return [self._event([self._sign(_part_of(block, block.text))])] if step.what == "end" else []
        if step.what != "piece" or (block.kind == "reasoning" and not self._includes_thoughts):
            return []
        part = _part_of(block, step.text)
        return [self._event([part if block.kind == "reasoning" else self._sign(part)])]

    def end(self) -> list[Fields]:
        return [self._event([self._sign({"text": ""})], is_last=True)]

    def answer(self) -> Fields:
        self._signed, parts = 0, []
        for block in self.read.blocks:
            if block.kind != "reasoning":
                parts.append(self._sign(_part_of(block, block.text), block.index))
            elif self._includes_thoughts:
                parts.append(_part_of(block, block.text))
        last = self._sign({"text": ""})
        return self._event(parts if parts and len(last) == 1 else [*parts, last], is_last=True)

    @property
    def _includes_thoughts(self) -> bool:
        return bool(self.request[_OWN]["includes_thoughts"])

    def _sign(self, part: Fields, before: int | None = None) -> Fields:
        """Add the thoughts that came before a part, and that no signature has yet."""
        blocks = self.read.blocks[self._signed : before]
        self._signed += len(blocks)
        thought = "".join(block.text for block in blocks if block.kind == "reasoning")
        if not thought:
            return part
        return {**part, "thoughtSignature": seal(thought)}

    def _event(self, parts: list[Fields], *, is_last: bool = False) -> Fields:
        read = self.read
        candidate: Fields = {"content": {"role": "model", "parts": parts}, "index": 0}
        event: Fields = {"candidates": [candidate], "modelVersion": self.request["model"], "responseId": self.id}
        if is_last:
            reason = read.finish_reason or "stop"
            if reason not in _REASONS:
                raise Refused(502, NOT_CONVERTIBLE, f"the engine ended its answer with {reason!r}")
            candidate["finishReason"] = _REASONS[reason]
            counts = {
                "promptTokenCount": read.input_tokens,
                "candidatesTokenCount": read.output_tokens - read.reasoning_tokens,
                "totalTokenCount": read.input_tokens + read.output_tokens,
            }
            counts |= {"cachedContentTokenCount": read.cached_tokens} if read.cached_tokens else {}
            counts |= {"thoughtsTokenCount": read.reasoning_tokens} if read.reasoning_tokens else {}
            event["usageMetadata"] = counts
        return event


def _part_of(block: Block, content: str) -> Fields:
    if block.kind == "call":
        return {"functionCall": {"id": block.call_id, "name": block.name, "args": arguments_object(content)}}
    return {"text": content, "thought": True} if block.kind == "reasoning" else {"text": content}
