"""From a conversation to the prompt's tokens: those that were sampled before, and the template's for the rest."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_core.proxy.refusals import Refused
from lightning_core.proxy.tokens.continuation import Conversations, Message
from lightning_core.proxy.tokens.engine import Tokenizer

_MARK = "\u2063answer\u2063of\u2063the\u2063model\u2063"
"""Stands for the model's own answer while the template is applied. Invisible separators: nobody writes this."""


class Prompts:
    """Makes prompts.

    Args:
        tokenizer: The model's.
        template_options: Passed on to its chat template.
        conversations: What was sampled before.
    """

    def __init__(self, tokenizer: Tokenizer, template_options: Mapping[str, Any], conversations: Conversations) -> None:
        self._tokenizer = tokenizer
        self._template_options = dict(template_options)
        self._conversations = conversations

    def make(self, attempt: str | None, messages: Sequence[Message], tools: Any) -> list[int]:
        """Return the prompt of a conversation.

        Where it goes on with one that the model took part in, it begins with exactly those tokens.

        Raises:
            Refused: When the model's template does not take it.
        """
        if attempt is not None:
            continued = self._continue(attempt, messages, tools)
            if continued is not None:
                return continued
        return self._encode(self._render(messages, tools))

    def remember(
        self,
        attempt: str,
        messages: Sequence[Message],
        tools: Any,
        answer: Message,
        prompt: Sequence[int],
        sampled: Sequence[int],
    ) -> None:
        """Remember what the model said, for the prompt that goes on with it."""
        self._conversations.remember(attempt, tools, [*messages, answer], [*prompt, *sampled])

    def _continue(self, attempt: str, messages: Sequence[Message], tools: Any) -> list[int] | None:
        known = self._conversations.find(attempt, tools, messages)
        if known is None:
            return None
        place = known.messages - 1
        marked = [*messages[:place], {"role": "assistant", "content": _MARK}, *messages[place + 1 :]]
        pieces = self._render(marked, tools).split(_MARK)
        if len(pieces) != 2:  # a template that leaves out or repeats earlier answers
            return None
        rest = pieces[1]
        last = known.token_ids[-1] if known.token_ids else None
        if last is not None:
            # What ends an answer was sampled, too, and the template writes it again.
            end = self._tokenizer.decode([last], skip_special_tokens=False)
            if end and not self._tokenizer.decode([last], skip_special_tokens=True) and rest.startswith(end):
                rest = rest.removeprefix(end)
        return [*known.token_ids, *self._encode(rest)]

    def _render(self, messages: Sequence[Message], tools: Any) -> str:
        conversation = [_for_template(message) for message in messages]
        try:
            text = self._tokenizer.apply_chat_template(
                conversation,
                tools=tools or None,
                add_generation_prompt=True,
                tokenize=False,
                **self._template_options,
            )
        except Exception as exc:  # a template may raise what it likes, and refuses conversations that way
            raise Refused(400, "invalid_request", f"the model's chat template refuses the messages: {exc}") from exc
        return str(text)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def _for_template(message: Message) -> Message:
    """Return a message as templates want it: its content is a text, arguments of tools are objects.

    Raises:
        Refused: When its content is more than text.
    """
    found = dict(message)
    content = message.get("content")
    if isinstance(content, list):
        if not all(isinstance(part, dict) and part.get("type") == "text" for part in content):
            raise Refused(400, "invalid_request", "this model takes text only; the messages have another content part")
        found["content"] = "".join(str(part.get("text") or "") for part in content)
    elif content is None:
        found["content"] = ""
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        found["tool_calls"] = [_with_arguments(call) for call in calls if isinstance(call, dict)]
    return found


def _with_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    try:
        function["arguments"] = json.loads(function.get("arguments") or "{}")
    except (ValueError, TypeError):
        return call
    return {**call, "function": function}
