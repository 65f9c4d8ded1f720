"""Calls of tools in the forms that models write, as tokens of a real tokenizer."""

import json
import logging
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from lightning_tokens.prompts import reasoning_marks
from lightning_tokens.testing import make_tiny_model
from transformers import AutoTokenizer

from lightning_core.errors import ConfigError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of verl
    from lightning_verl.tools import VerlToolParser, check_form, warn_of_other_form

PROPERTIES = {"x": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "y": {"type": "string"}}
ADD = {"name": "add", "parameters": {"type": "object", "properties": PROPERTIES}}
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": ADD}, {"type": "web_search"}]

WRITTEN = {
    "hermes": 'Let me see.<tool_call>{"name": "add", "arguments": {"x": 1, "y": "2"}}</tool_call>',
    "qwen3_coder": "Let me see.<tool_call>\n<function=add>\n<parameter=x>\n1\n</parameter>\n"
    "<parameter=y>\n2\n</parameter>\n</function>\n</tool_call>",
    "glm": "Let me see.<tool_call>add\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n"
    '<arg_key>y</arg_key>\n<arg_value>"2"</arg_value>\n</tool_call>',
    "gpt-oss": "<|channel|>analysis<|message|>Shall I?<|end|><|start|>assistant<|channel|>commentary "
    'to=functions.add <|constrain|>json<|message|>{"x": 1, "y": "2"}<|call|>',
    "gemma4": '<|tool_call>call:add{x:1,y:<|"|>2<|"|>}<tool_call|>',
}
"""By form, the same call."""

MARKS = [
    *("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<|observation|>"),
    *("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|constrain|>", "<|call|>"),
    *("<|tool_call>", "<tool_call|>", '<|"|>'),
]
"""What marks calls are special tokens, which the text of an answer has no more."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    found = AutoTokenizer.from_pretrained(make_tiny_model(tmp_path_factory.mktemp("tools")))
    found.add_special_tokens({"additional_special_tokens": MARKS})
    return found


def sampled(tokenizer: Any, text: str) -> list[int]:
    return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]


@pytest.mark.parametrize("form", WRITTEN)
async def test_a_call_is_found_whatever_form_the_model_writes_it_in(tokenizer: Any, form: str) -> None:
    content, calls = await VerlToolParser(form, tokenizer).read(sampled(tokenizer, WRITTEN[form]), TOOLS)
    (call,) = calls
    assert (call["type"], call["function"]["name"]) == ("function", "add")
    assert json.loads(call["function"]["arguments"]) == {"x": 1, "y": "2"}
    assert call["id"]
    assert content == ("Let me see." if WRITTEN[form].startswith("Let") else "")


@pytest.mark.parametrize("form", WRITTEN)
async def test_an_answer_without_a_call_is_its_text(tokenizer: Any, form: str) -> None:
    assert await VerlToolParser(form, tokenizer).read(sampled(tokenizer, "It is 3."), TOOLS) == ("It is 3.", [])


def test_what_ends_an_answer_behind_a_call_is_told(tokenizer: Any) -> None:
    assert VerlToolParser("gemma4", tokenizer).stop_token_ids == [tokenizer.convert_tokens_to_ids("<tool_call|>")]
    assert VerlToolParser("hermes", tokenizer).stop_token_ids == []


def test_a_form_that_verl_does_not_read_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"multi_turn\.format is 'qwen3_code'; .*Did you mean 'qwen3_coder'\?"):
        check_form("qwen3_code")


@pytest.mark.parametrize(
    ("template", "is_said"),
    [
        ("{{ tools }}<tool_call>{{ call }}</tool_call>", False),
        ("{{ messages }}", False),
        ("{{ tools }}<tool_call><function={{ name }}>", True),
        ("{{ tools }}<|python_tag|>", True),
    ],
)
def test_a_template_that_writes_calls_in_another_form_is_told_of(
    template: str, is_said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        warn_of_other_form("hermes", SimpleNamespace(chat_template=template))
    assert ("lightning_verl.tools_in_another_form" in caplog.text) is is_said


@pytest.mark.parametrize(
    ("template", "special", "marks"),
    [
        ("{{ content.split('</think>')[-1] }}<think>", [], ("<think>", "</think>")),
        ("{{ messages }}", [], None),
        ("<think>{{ content }}</think>", ["</think>"], None),
        (None, [], None),
    ],
)
def test_a_model_thinks_where_its_template_has_the_marks_as_text(
    template: str | None, special: list[str], marks: tuple[str, str] | None
) -> None:
    assert reasoning_marks(SimpleNamespace(chat_template=template, all_special_tokens=special)) == marks
