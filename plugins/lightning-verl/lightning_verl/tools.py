"""Calls of tools as verl's parsers read them: in an answer's tokens, in the form that a model writes."""

import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lightning_tokens import parse_hermes
from verl.experimental.agent_loop.tool_parser import ToolParser
from verl.tools.schemas import OpenAIFunctionToolSchema

from lightning_core.errors import ConfigError
from lightning_core.registry import did_you_mean
from lightning_verl.rules import TOOL_FORMAT

logger = logging.getLogger(__name__)

_HERMES = "hermes"


def tool_forms() -> list[str]:
    """Return the forms in which verl reads calls of tools; it lists them nowhere else."""
    return sorted(ToolParser._registry)


def check_form(form: str) -> None:
    """Check that verl reads calls of tools in a form.

    Raises:
        ConfigError: Says which ones it reads.
    """
    known = tool_forms()
    if form not in known:
        raise ConfigError(
            f"{TOOL_FORMAT} is {form!r}; verl reads calls of tools as {', '.join(known)}"
            f"{did_you_mean(form, known) or '.'} For another one, register a class with verl's ToolParser.register"
        )


class VerlToolParser:
    """Reads calls in one of verl's forms, such as `hermes`, `qwen3_coder`, `glm` or `gpt-oss`.

    Args:
        form: Which one; one of your own is registered with verl's `ToolParser.register`.
        tokenizer: The model's, of transformers.

    Raises:
        ConfigError: When verl has no such form.
    """

    def __init__(self, form: str, tokenizer: Any) -> None:
        check_form(form)
        self._tokenizer = tokenizer
        self._parser = ToolParser.get_tool_parser(form, tokenizer)
        self._is_hermes = form == _HERMES

    @property
    def stop_token_ids(self) -> list[int]:
        """The tokens that end an answer behind a call, for models that would go on."""
        return list(self._parser.stop_token_ids)

    async def read(
        self, token_ids: Sequence[int], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[str, list[dict[str, Any]]]:
        """Return what is left of an answer's text, and the tool calls as OpenAI's chat API has them."""
        if self._is_hermes:  # verl's would drop a call that is not well formed
            content, calls = parse_hermes(self._tokenizer.decode(token_ids, skip_special_tokens=False))
        else:
            content, found = await self._parser.extract_tool_calls(list(token_ids), list(_schemas(tools)))
            calls = [
                {
                    "id": call.tool_call_id or f"call_{secrets.token_hex(12)}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in found
            ]
        if not calls:
            return self._tokenizer.decode(token_ids, skip_special_tokens=True), []
        for special in self._tokenizer.all_special_tokens:
            content = content.replace(special, "")
        return content.rstrip(), calls


def warn_of_other_form(form: str, tokenizer: Any) -> None:
    """Say so where a model's chat template has tools, and writes their calls otherwise than `hermes`."""
    template = str(getattr(tokenizer, "chat_template", None) or "")
    is_hermes = "<tool_call>" in template and not any(other in template for other in ("<function=", "<arg_key>"))
    if form == _HERMES and "tools" in template and not is_hermes:
        logger.warning(
            "lightning_verl.tools_in_another_form the model's chat template does not write calls of tools as 'hermes', "
            "so those of an agent that offers tools may not be found; set %s to one of %s",
            TOOL_FORMAT,
            ", ".join(tool_forms()),
        )


def _schemas(tools: Iterable[Mapping[str, Any]]) -> Iterable[OpenAIFunctionToolSchema]:
    """Give tools as verl wants them: of all that agents say, it reads the types of parameters."""
    for tool in tools:
        function = tool.get("function")
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            continue
        properties = (function.get("parameters") or {}).get("properties") or {}
        yield OpenAIFunctionToolSchema.model_validate(
            {
                "type": "function",
                "function": {
                    "name": function["name"],
                    "description": "",
                    "parameters": {
                        "type": "object",
                        "properties": {name: {"type": _type_of(each)} for name, each in properties.items()},
                    },
                },
            }
        )


def _type_of(schema: Any) -> str:
    """Return the type of a parameter; that of the first choice that is not null, where there are several."""
    if not isinstance(schema, Mapping):
        return "string"
    kind = schema.get("type")
    if isinstance(kind, str):
        return kind
    choices = kind if isinstance(kind, list) else [_type_of(each) for each in schema.get("anyOf") or ()]
    return next((str(each) for each in choices if each != "null"), "string")
