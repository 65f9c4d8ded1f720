"""A model of tokens in the process: prompts go on with the very tokens that were sampled."""

import asyncio
import itertools
import json
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies
from lightning_tokens import Generated, TokensBackend, parse_hermes
from lightning_tokens.prompts import Conversations, TextStream
from lightning_tokens.shapes import TextBefore, start_of
from proxy_fixtures import Agent
from token_engine import END, PAIR, Engine, Letters, StreamingEngine, converse

from lightning_core.adapter import TraceToMessages, TraceToTrajectories, read_model_calls
from lightning_core.errors import ConfigError

USER = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]


Start = Any


async def ask(agent: Agent, path: str = "/chat/completions", **fields: Any) -> dict[str, Any]:
    """Make a call; return the answer's only choice."""
    async with agent.post(path, **fields) as response:
        answer = await response.json()
    assert response.status == 200, answer
    return dict(answer["choices"][0])


both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
engines = pytest.mark.parametrize("engine_type", [Engine, StreamingEngine])


@both_ways
@engines
async def test_a_conversation_goes_on_with_the_tokens_that_were_sampled(
    start: Start, stream: bool, engine_type: type[Engine]
) -> None:
    engine = engine_type([PAIR, ord("c"), END], [PAIR, END], "end")
    agent = await start(engine)
    said = await converse(agent, 3, stream)
    assert [message["content"] for message in said[1::2]] == ["abc", "ab", "end"]
    first, second, third = engine.prompts
    assert second[: len(first) + 3] == [*first, PAIR, ord("c"), END]
    assert third[: len(second) + 2] == [*second, PAIR, END]
    assert second[len(first) + 3 :] == [ord(character) for character in "\nu:q1\x01\na:"]
    found = TraceToTrajectories().adapt(await agent.spans())
    assert found.refused == ()
    (row,) = found.rows
    assert row.prompt_ids == first
    assert sum(row.mask) == 3 + 2 + 4
    assert set(engine.ids) == {agent.rollout.attempt.attempt_id}


async def test_an_answer_that_was_cut_off_goes_on_with_the_templates_end(start: Start) -> None:
    engine = Engine([ord("x"), ord("y")], "ok")
    await converse(await start(engine), 2, False)
    first, second = engine.prompts
    assert second == [*first, ord("x"), ord("y"), *map(ord, "\x01\nu:q1\x01\na:")]


async def test_a_history_that_was_edited_is_rendered_anew(start: Start) -> None:
    engine = Engine([PAIR, END], "ok")
    agent = await start(engine)
    await ask(agent, messages=USER)
    await ask(agent, messages=[*USER, {"role": "assistant", "content": "other"}, *USER])
    assert PAIR not in engine.prompts[1]


@both_ways
async def test_tool_calls_are_found_and_continued_exactly(start: Start, stream: bool) -> None:
    call = '<tool_call>{"name":  "add", "arguments": {"x":1}}</tool_call>'
    engine = StreamingEngine(f"Let me see. {call}", "3")
    agent = await start(engine)
    said = await converse(agent, 1, stream, tools=TOOLS)
    answer = said[1]
    assert answer["content"] == "Let me see."
    assert answer["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"x": 1}'}
    said.append({"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "3"})
    assert (await ask(agent, messages=said, tools=TOOLS))["message"]["content"] == "3"
    assert engine.prompts[1][: len(engine.prompts[0])] == engine.prompts[0]
    assert call in Letters().decode(engine.prompts[1], skip_special_tokens=False)
    spans = await agent.spans()
    assert len(TraceToTrajectories().adapt(spans).rows) == 1
    assert read_model_calls(spans)[0].finish_reason == "tool_calls"
    assert TraceToMessages().adapt(spans)[1]["messages"][-1]["content"] == "3"


CALL = '<tool_call>{"name": "add", "arguments": {"x":1.0,"y":"ü"}}</tool_call>'


class Strict(Letters):
    """Takes a tool's result behind a call only, as the template of gpt-oss does."""

    def apply_chat_template(self, conversation: Any, **options: Any) -> str:
        for before, message in itertools.pairwise(conversation):
            if "tool_calls" in before and not before["tool_calls"]:
                raise ValueError("there is no tool call")
            if message["role"] == "tool" and not before.get("tool_calls"):
                raise ValueError("there was no previous assistant message with a tool call")
        return super().apply_chat_template(conversation, **options)


@pytest.mark.parametrize("tokenizer", [Letters(), Strict()], ids=["lenient", "strict"])
async def test_a_tools_result_goes_on_with_the_tokens_of_its_call(start: Start, tokenizer: Letters) -> None:
    engine = Engine(CALL, "3", "ok")
    agent = await start(engine, tokenizer)
    said = await converse(agent, 1, False, tools=TOOLS)
    said.append({"role": "tool", "tool_call_id": said[1]["tool_calls"][0]["id"], "content": "3"})
    said = [*said, (await ask(agent, messages=said, tools=TOOLS))["message"], *USER]
    await ask(agent, messages=said, tools=TOOLS)
    first, second, third = (tokenizer.decode(prompt, skip_special_tokens=False) for prompt in engine.prompts)
    assert second == f"{first}{CALL}\x01\nt:3\x01\na:"
    assert third == f"{second}3\x01\nu:hi\x01\na:"


async def test_a_call_that_was_cut_off_is_rendered_anew_where_the_template_wants_it(start: Start) -> None:
    engine = Engine([*map(ord, CALL)], "ok")
    agent = await start(engine, Strict())
    said = await converse(agent, 1, False, tools=TOOLS)
    said.append({"role": "tool", "tool_call_id": said[1]["tool_calls"][0]["id"], "content": "3"})
    await ask(agent, messages=said, tools=TOOLS)
    assert CALL not in Letters().decode(engine.prompts[1], skip_special_tokens=False)


@pytest.mark.parametrize(
    ("arguments", "is_same"),
    [
        ('{"x": 1, "y": "\\u00fc"}', True),
        ('{"y":"ü","x":1}', True),
        ({"x": 1, "y": "ü"}, True),
        ('{"x":2,"y":"ü"}', False),
    ],
    ids=["spaces", "order", "object", "other arguments"],
)
async def test_a_history_that_says_the_same_in_another_form_is_continued(
    start: Start, arguments: Any, is_same: bool
) -> None:
    engine = Engine([PAIR, *map(ord, CALL), END], "ok")
    agent = await start(engine)
    said = await converse(agent, 1, False, tools=TOOLS)
    call = said[1]["tool_calls"][0]
    call["function"]["arguments"] = arguments
    said[0]["content"] = [{"type": "text", "text": said[0]["content"]}]
    said[1]["content"] = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    said.append({"role": "tool", "tool_call_id": call["id"], "content": "3"})
    await ask(agent, messages=said, tools=TOOLS)
    assert (PAIR in engine.prompts[1]) == is_same


@pytest.mark.parametrize(
    ("sampled", "content"),
    [
        (f"Let me see. {CALL}", ["Let", " me", " see."]),
        (f" {CALL}{CALL}", []),
        ("a < b <tool_calls>", ["a", " < b", " <tool_calls>"]),
        ("a <tool_call>{", ["a", " <tool_call>{"]),
    ],
)
async def test_text_is_streamed_until_it_may_be_a_tool_call(start: Start, sampled: str, content: list[str]) -> None:
    class Words(StreamingEngine):
        async def stream(self, *_: Any, **__: Any) -> AsyncIterator[Generated]:
            words = sampled.replace(" ", "\0 ").split("\0")
            for place, word in enumerate(words):
                yield Generated([*map(ord, word)], None, None if place + 1 < len(words) else "stop")

    async with (await start(Words("x"))).chat(stream=True, tools=TOOLS) as response:
        events = [json.loads(line[6:]) for line in (await response.text()).split("\n\n")[:-2]]
    deltas = [event["choices"][0]["delta"] for event in events]
    assert [delta["content"] for delta in deltas if delta.get("content")] == content
    assert sum(len(delta.get("tool_calls", ())) for delta in deltas) == sampled.count("</tool_call>")


async def test_text_comes_at_the_end_where_it_is_not_known_how_a_tool_call_begins(start: Start) -> None:
    agent = await start(StreamingEngine("a b c"), tool_parser=lambda text: (text.upper(), []))
    async with agent.chat(stream=True, tools=TOOLS) as response:
        text = await response.text()
    assert text.count('"content":"A B C"') == 1
    assert '"content":"a' not in text


@given(
    strategies.lists(
        strategies.sampled_from(["<tool_call>", CALL, "</tool_call>", "<", "tool", "_call>", " ", "\n", "a"]),
        max_size=8,
    )
)
def test_what_is_streamed_before_tool_calls_is_what_the_parser_leaves(pieces: list[str]) -> None:
    before = TextBefore(start_of(parse_hermes))
    told = "".join(before.feed(piece) for piece in pieces)
    content, _ = parse_hermes("".join(pieces))
    assert before.told == len(told)
    assert content.startswith(told)


@pytest.mark.parametrize("long", ["messages", "prompt", "answer"])
async def test_other_calls_go_on_while_a_long_one_is_made_tokens_of(start: Start, long: str) -> None:
    began, may_end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    class Slow(Letters):
        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            self.wait(len(text))
            return super().encode(text, add_special_tokens=add_special_tokens)

        def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
            self.wait(len(token_ids))
            return super().decode(token_ids, skip_special_tokens=skip_special_tokens)

        def wait(self, length: int) -> None:
            if length > 10_000:
                loop.call_soon_threadsafe(began.set)
                assert may_end.wait(20), "nothing else went on meanwhile"

    text = "a" * 20_000
    agent = await start(Engine(text if long == "answer" else "ok", "ok"), Slow())
    if long == "prompt":
        asking = ask(agent, "/completions", prompt=text)
    else:
        asking = ask(agent, messages=[{"role": "user", "content": text}] if long == "messages" else USER)
    slow = asyncio.create_task(asking)
    await began.wait()
    await ask(agent, messages=USER)
    may_end.set()
    await slow


async def test_several_choices_and_sampling_parameters(start: Start) -> None:
    engine = Engine("a", "b")
    agent = await start(engine)
    async with agent.chat(n=2, temperature=0.5, max_completion_tokens=7, user="me") as response:
        answer = await response.json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["a", "b"]
    assert engine.sampling[0] == {"temperature": 0.5, "max_tokens": 7}
    (call,) = read_model_calls(await agent.spans())
    assert [choice.token_ids for choice in call.choices] == [[97, 1], [98, 1]]
    assert call.choices[0].logprobs == [-0.097, -0.001]


@both_ways
async def test_the_engine_knows_best_which_weights_it_sampled_with(start: Start, stream: bool) -> None:
    class Versioned(StreamingEngine):
        async def generate(self, *args: Any, **kwargs: Any) -> Generated:
            return replace(await super().generate(*args, **kwargs), weight_versions=(3, 5))

        async def stream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Generated]:
            yield Generated([97], None, None, (3, 3))
            yield Generated([1], None, "stop", (4, 5))

    agent = await start(Versioned("a"))
    agent.proxy.set_weight_version(7)
    async with agent.post("/completions", prompt="x", stream=stream) as response:
        await response.read()
    (span,) = await agent.spans()
    assert span.attributes["agentlightning.weight_version"] == "3"
    assert span.attributes["agentlightning.weight_version.end"] == "5"


@both_ways
async def test_completions_take_text_and_tokens(start: Start, stream: bool) -> None:
    engine = Engine("ok")
    agent = await start(engine)
    for prompt in ("abc", [97, 98, 99]):
        async with agent.post("/completions", prompt=prompt, stream=stream) as response:
            assert response.status == 200
            await response.read()
    assert engine.prompts == [[97, 98, 99]] * 2
    for call in read_model_calls(await agent.spans()):
        assert (call.prompt_token_ids, call.response_token_ids) == ([97, 98, 99], [111, 107, 1])


async def refused(agent: Agent, path: str = "/chat/completions", **fields: Any) -> dict[str, Any]:
    """Make a call that is to be refused; return the error, as OpenAI's API has it."""
    said = {"prompt": "a"} if path == "/completions" else {"messages": USER}
    async with agent.post(path, **{**said, **fields}) as response:
        answer = await response.json()
    assert response.status == 400, answer
    assert sorted(answer["error"]) == ["code", "message", "param", "type"]
    assert answer["error"]["type"] == "invalid_request_error"
    return dict(answer["error"])


async def test_two_lengths_that_differ_are_refused(start: Start) -> None:
    error = await refused(await start(Engine("x")), max_tokens=1, max_completion_tokens=2)
    assert "max_tokens is 1, and max_completion_tokens 2" in error["message"]


@both_ways
@pytest.mark.parametrize("path", ["/chat/completions", "/completions"])
async def test_what_goes_beyond_the_context_is_refused(start: Start, path: str, stream: bool) -> None:
    class Short(Engine):
        max_context_tokens = 12

    agent = await start(Short("x"))
    said: dict[str, Any] = {"prompt": "u:hi.\na:"} if path == "/completions" else {"messages": USER}  # 8 tokens
    error = await refused(agent, path, stream=stream, max_tokens=5, **said)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "max_tokens")
    expected = (
        "This model's maximum context length is 12 tokens, and the prompt has 8 input tokens; "
        "max_tokens is 5, ask for 4 at most"
    )
    assert error["message"] == expected
    async with agent.post(path, stream=stream, max_tokens=4, **said) as response:
        assert response.status == 200
    long = {"prompt": "a" * 12} if path == "/completions" else {"messages": [{"role": "user", "content": "a" * 12}]}
    error = await refused(agent, path, stream=stream, **long)
    assert (error["code"], error["param"]) == ("context_length_exceeded", next(iter(long)))
    assert error["message"].endswith("; make it shorter")


async def test_an_engine_may_end_answers_at_the_context_instead(start: Start) -> None:
    class Lowers(Engine):
        max_context_tokens = 12
        lowers_max_tokens = True

    agent = await start(Lowers("x"))
    await ask(agent, messages=USER, max_tokens=5)
    error = await refused(agent, messages=[{"role": "user", "content": "a" * 12}])
    assert error["code"] == "context_length_exceeded"


WITHOUT = [
    ({"response_format": {"type": "json_object"}}, True),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}}, True),
    ({"tool_choice": "required", "tools": TOOLS}, True),
    ({"tool_choice": {"type": "function", "function": {"name": "add"}}, "tools": TOOLS}, True),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}, "tools": TOOLS}, True),
    ({"logit_bias": {"50": 1}}, True),
    ({"guided_regex": "a+"}, True),
    ({"temprature": 0.5}, True),
    ({"max_output_tokens": 3}, True),
    ({"parallel_tool_calls": False, "tools": TOOLS}, False),
    ({"reasoning_effort": "low"}, False),
    ({"verbosity": "low"}, False),
]
"""What an engine of tokens cannot honour, and whether a warning tells of it."""


@both_ways
@pytest.mark.parametrize(("fields", "warns"), WITHOUT, ids=str)
async def test_what_the_engine_cannot_honour_is_recorded_and_the_call_goes_on(
    start: Start, stream: bool, fields: dict[str, Any], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine("x")
    agent = await start(engine)
    for _ in range(2):
        async with agent.chat(stream=stream, **fields) as response:
            assert response.status == 200, await response.text()
            await response.read()
    name = next(iter(fields))
    assert engine.sampling == [{}, {}]
    assert [span.attributes["agentlightning.ignored_parameters"] for span in await agent.spans()] == [[name]] * 2
    assert caplog.text.count(f"lightning.parameter_ignored name={name} model=small") == warns


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/chat/completions", {"top_logprobs": 2, "logprobs": True}),
        ("/chat/completions", {"prompt_logprobs": 0}),
        ("/chat/completions", {"functions": [{"name": "add"}]}),
        ("/chat/completions", {"modalities": ["text", "audio"]}),
        ("/chat/completions", {"continue_final_message": True}),
        ("/completions", {"echo": True}),
        ("/completions", {"suffix": "b"}),
        ("/completions", {"best_of": 2}),
        ("/completions", {"logprobs": 5}),
    ],
    ids=str,
)
async def test_what_would_make_it_another_answer_is_refused(start: Start, path: str, fields: dict[str, Any]) -> None:
    error = await refused(await start(Engine("x")), path, **fields)
    assert (error["code"], error["param"]) == ("unsupported_parameter", next(iter(fields)))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_tokens", 0, "max_tokens is 0; it has to be more than 0"),
        ("max_tokens", "many", "max_tokens is 'many'; it has to be a whole number"),
        ("max_tokens", 1.5, "max_tokens is 1.5; it has to be a whole number"),
        ("max_tokens", True, "max_tokens is True; it has to be a whole number"),
        ("max_completion_tokens", -1, "max_completion_tokens is -1; it has to be more than 0"),
        ("temperature", -1, "temperature is -1; it has to be 0 or more"),
        ("temperature", "hot", "temperature is 'hot'; it has to be a number"),
        ("top_p", 0, "top_p is 0; it has to be more than 0"),
        ("top_k", 1.5, "top_k is 1.5; it has to be a whole number"),
        ("presence_penalty", 3, "presence_penalty is 3; it has to be 2 or less"),
        ("seed", "a", "seed is 'a'; it has to be a whole number"),
        ("stop", [1], "stop is [1]; it has to be a text"),
        ("stop", "", "stop is ''; it has to be a list or it has to have at least 1 character"),
        ("stop_token_ids", ["a"], "stop_token_ids is ['a']; it has to be a whole number"),
        ("ignore_eos", 1, "ignore_eos is 1; it has to be true or false"),
        ("stream", "yes", "stream is 'yes'; it has to be true or false"),
        ("n", 200, "n is 200; it has to be 128 or less"),
        ("n", "2", "n is '2'; it has to be a whole number"),
        ("tools", {}, "tools is {}; it has to be a list"),
        ("tool_choice", "any", "tool_choice is 'any'; it is 'auto', 'none', 'required' or a function"),
        ("tool_choice", "required", "tool_choice is 'required'; tools has no such function: []"),
        ("chat_template_kwargs", 1, "chat_template_kwargs is 1; it has to be a mapping"),
        (
            "chat_template_kwargs",
            {"chat_template": "x"},
            "chat_template_kwargs has 'chat_template', which the agent cannot set; leave it out",
        ),
        (
            "response_format",
            {"type": "json_schema"},
            "response_format is {'type': 'json_schema'}; json_schema.schema is an object",
        ),
        ("messages", "hi", "messages is missing, or no list of messages"),
    ],
)
async def test_a_value_that_a_parameter_cannot_have_is_named(start: Start, name: str, value: Any, message: str) -> None:
    engine = Engine("x")
    error = await refused(await start(engine), **{name: value})
    assert (error["param"], error["code"], error["message"]) == (name, "invalid_request", message)
    assert engine.prompts == []


async def test_what_changes_nothing_is_taken(start: Start) -> None:
    engine = Engine("x")
    agent = await start(engine)
    told = {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"}
    neutral = {"response_format": {"type": "text"}, "logit_bias": {}, "parallel_tool_calls": True, "top_logprobs": 0}
    await ask(agent, messages=USER, tool_choice="auto", reasoning_effort=None, stop=None, **told, **neutral)
    await ask(agent, "/completions", prompt="a", echo=False, suffix="", best_of=1)
    assert engine.sampling == [{}, {}]


async def test_what_the_engine_honours_reaches_it(start: Start) -> None:
    engine = Engine("x")
    asked = {
        "temperature": 0,
        "top_p": 0.9,
        "top_k": -1,
        "min_p": 0.1,
        "max_tokens": 3,
        "stop": ["END"],
        "stop_token_ids": [5],
        "seed": 7,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.1,
        "ignore_eos": True,
    }
    await ask(await start(engine), messages=USER, **asked)
    assert engine.sampling == [asked]


class Constrained(StreamingEngine):
    """Takes schemas, as vLLM does: it is told to answer what they allow."""

    takes = frozenset({"json_schema", "logit_bias"})


def called(name: str, arguments: dict[str, Any], **definitions: Any) -> dict[str, Any]:
    """The schema of a call."""
    properties = {"name": {"type": "string", "enum": [name]}, "arguments": arguments}
    schema = {"type": "object", "properties": properties, "required": ["name", "arguments"]}
    return {**schema, "additionalProperties": False, **definitions}


FORMS = {"X": {"type": "integer"}}
NUMBERS = {"type": "object", "properties": {"x": {"$ref": "#/$defs/X"}}}
TWO = [
    {"type": "function", "function": {"name": "add", "parameters": {**NUMBERS, "$defs": FORMS}}},
    {"type": "function", "function": {"name": "now"}},
]


@both_ways
@pytest.mark.parametrize(
    ("choice", "schema"),
    [
        ({"type": "function", "function": {"name": "add"}}, called("add", NUMBERS, **{"$defs": FORMS})),
        ("required", {"anyOf": [called("add", NUMBERS), called("now", {"type": "object"})], "$defs": FORMS}),
    ],
    ids=["named", "required"],
)
async def test_a_tool_call_is_forced_where_the_engine_takes_schemas(
    start: Start, stream: bool, choice: Any, schema: Any
) -> None:
    engine = Constrained('{"name": "add", "arguments": {"x": 1}}', "3")
    agent = await start(engine)
    said = await converse(agent, 1, stream, tools=TWO, tool_choice=choice)
    assert engine.sampling[0] == {"json_schema": schema}
    (call,) = said[1]["tool_calls"]
    assert (call["function"], said[1]["content"]) == ({"name": "add", "arguments": '{"x": 1}'}, None)
    said.append({"role": "tool", "tool_call_id": call["id"], "content": "3"})
    await ask(agent, messages=said, tools=TWO)
    spans = await agent.spans()
    assert len(TraceToTrajectories().adapt(spans).rows) == 1
    assert "agentlightning.ignored_parameters" not in spans[0].attributes


async def test_a_forced_call_that_was_cut_off_is_text(start: Start) -> None:
    agent = await start(Constrained([*map(ord, '{"name": "add", "argu')]))
    said = await converse(agent, 1, False, tools=TOOLS, tool_choice="required")
    assert (said[1]["content"], said[1]["tool_calls"]) == ('{"name": "add", "argu', None)


OTHER = {"name": "sub", "parameters": {**NUMBERS, "$defs": {"X": {"type": "string"}}}}
DIFFERENT = [TWO[0], {"type": "function", "function": OTHER}]
"""Tools whose definitions of one name differ."""


OBJECT = {"type": "json_object"}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": NUMBERS}}


@pytest.mark.parametrize(
    ("fields", "sampling", "ignored"),
    [
        ({"response_format": OBJECT}, {"json_schema": {"type": "object"}}, None),
        ({"response_format": SCHEMA}, {"json_schema": NUMBERS}, None),
        ({"response_format": OBJECT, "tools": TOOLS, "tool_choice": "none"}, {"json_schema": {"type": "object"}}, None),
        ({"response_format": OBJECT, "tools": TOOLS}, {}, ["response_format"]),
        ({"response_format": {"type": "grammar"}}, {}, ["response_format"]),
        ({"logit_bias": {"50": 1}}, {"logit_bias": {"50": 1}}, None),
        ({"json_schema": NUMBERS}, {}, ["json_schema"]),
        ({"tools": DIFFERENT, "tool_choice": "required"}, {}, ["tool_choice"]),
    ],
    ids=str,
)
async def test_an_engine_is_given_what_it_takes(
    start: Start, fields: dict[str, Any], sampling: dict[str, Any], ignored: list[str] | None
) -> None:
    engine = Constrained("x")
    agent = await start(engine)
    await ask(agent, messages=USER, **fields)
    assert engine.sampling == [sampling]
    assert (await agent.span()).attributes.get("agentlightning.ignored_parameters") == ignored


class Thinks(Letters):
    def apply_chat_template(self, conversation: Any, **options: Any) -> str:
        return f"{options.get('thinks')}\n{super().apply_chat_template(conversation, **options)}"


async def test_options_of_a_call_go_to_the_template_and_belong_to_the_conversation(start: Start) -> None:
    engine = Engine([PAIR, END], "ok")
    agent = await start(engine, Thinks(), chat_template_kwargs={"thinks": "much"})
    said = await converse(agent, 2, False, extra_body={"chat_template_kwargs": {"thinks": "little"}})
    assert Letters().decode(engine.prompts[0], skip_special_tokens=True).startswith("little\n")
    assert PAIR in engine.prompts[1]
    await ask(agent, messages=said[:3])
    assert PAIR not in engine.prompts[2]
    assert Letters().decode(engine.prompts[2], skip_special_tokens=True).startswith("much\n")


@both_ways
@pytest.mark.parametrize(
    ("sampled", "content"),
    [("a. b Obs: 7", "a. b "), ("a O Ob", "a O Ob"), ("Obs:", ""), ("no", "no"), ("END and Obs:", "")],
)
async def test_the_words_that_end_an_answer_are_not_part_of_it(
    start: Start, stream: bool, sampled: str, content: str
) -> None:
    engine = StreamingEngine(sampled, "ok")
    agent = await start(engine)
    said = await converse(agent, 2, stream, stop=["END", "Obs:"])
    assert (said[1]["content"] or "") == content
    assert sampled in Letters().decode(engine.prompts[1], skip_special_tokens=True), "the tokens go on as they were"
    assert len(TraceToTrajectories().adapt(await agent.spans()).rows) == 1


async def test_answers_of_one_seed_are_not_all_the_same(start: Start) -> None:
    engine = Engine("a", "b", "c")
    await ask(await start(engine), messages=USER, n=3, seed=7)
    assert [sampling["seed"] for sampling in engine.sampling] == [7, 8, 9]


@both_ways
async def test_an_engine_that_fails_is_told_of(start: Start, stream: bool) -> None:
    engine = Engine("x")
    engine.failure = RuntimeError("out of memory")
    agent = await start(engine)
    async with agent.chat(stream=stream) as response:
        assert "out of memory" in await response.text()
    assert (await agent.span()).attributes["error.type"] == "backend_broke"


async def test_an_agent_that_hangs_up_stops_the_sampling(start: Start) -> None:
    began, stopped = asyncio.Event(), asyncio.Event()

    class Endless(Engine):
        async def generate(self, prompt_ids: list[int], sampling: Mapping[str, Any], *, request_id: str) -> Generated:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()
            raise AssertionError

    agent = await start(Endless("x"))
    call = asyncio.create_task(agent.chat().__aenter__())
    await began.wait()
    call.cancel()
    await asyncio.wait_for(stopped.wait(), 20)


@given(strategies.lists(strategies.tuples(strategies.integers(0, 20), strategies.integers(0, 2)), max_size=30))
def test_conversations_that_share_turns_are_found_as_they_were(steps: list[tuple[int, int]]) -> None:
    known = Conversations()
    told: list[tuple[list[dict[str, Any]], list[int]]] = [([], [])]
    for place, answer in steps:  # go on from any one before, so that turns are shared, repeated and branched
        messages, tokens = told[place % len(told)]
        told.append(([*messages, {"role": "assistant", "content": str(answer)}], [*tokens, answer, answer]))
        known.remember("at-1", None, *told[-1])
    for messages, tokens in told[1:]:
        found = known.find("at-1", None, [*messages, {"role": "user", "content": "on"}])
        assert found is not None
        assert (found.messages, list(found.token_ids)) == (len(messages), tokens)
    whole = {tuple(tokens) for _, tokens in told}
    assert known.tokens <= sum(map(len, whole))


def test_the_turns_of_a_conversation_are_remembered_once() -> None:
    # By its whole length each, 50 turns would be 12,750 tokens, and the first attempts forgotten.
    known = Conversations(max_tokens=5000)
    for turn in range(1, 51):
        for attempt in range(10):
            messages = [{"role": "assistant", "content": str(number)} for number in range(turn)]
            known.remember(f"at-{attempt}", None, messages, [*range(10 * turn)])
    assert known.tokens == 10 * 500
    for attempt in range(10):
        found = known.find(f"at-{attempt}", None, messages[:30])
        assert found is not None
        assert list(found.token_ids) == [*range(300)]


def test_what_is_remembered_is_bounded() -> None:
    known = Conversations(max_tokens=100, max_per_attempt=2)
    message = {"role": "assistant", "content": "x"}
    for number in range(5):
        known.remember("at-1", None, [{"role": "user", "content": str(number)}, message], [0] * 10)
    assert known.tokens == 20
    for number in range(20):
        known.remember(f"at-{number}", None, [message], [0] * 10)
    assert known.tokens <= 100
    assert known.find("at-1", None, [message]) is None
    assert known.find("at-19", None, [message, message]) is not None


def test_a_character_of_several_tokens_comes_whole() -> None:
    class Bytes(Letters):
        def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
            return bytes(token_ids).decode("utf-8", "replace")

    stream = TextStream(Bytes())
    pieces = [stream.feed([byte], is_last=False) for byte in "aü€".encode()]
    assert pieces == ["a", "", "ü", "", "", "€"]
    assert stream.feed([0xE2], is_last=True) == "\ufffd"


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "text",
    ["none", "<tool_call>{</tool_call>", '<tool_call>{"a": 1}</tool_call>', f"<tool_call>{DEEP}</tool_call>"],
    ids=["none", "broken", "nameless", "deep"],
)
def test_what_is_no_tool_call_stays_text(text: str) -> None:
    assert parse_hermes(text) == (text, [])


async def test_arguments_that_are_nested_too_deep_go_to_the_template_as_they_are(start: Start) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": DEEP}}
    said = [*USER, {"role": "assistant", "content": "", "tool_calls": [call]}, *USER]
    engine = Engine("ok")
    await ask(await start(engine), messages=said, tools=TOOLS)
    assert DEEP in Letters().decode(engine.prompts[0], skip_special_tokens=False)


@both_ways
async def test_a_tool_parser_that_fails_loses_nothing(
    start: Start, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(text: str) -> Any:
        raise RuntimeError("what is this?")

    agent = await start(StreamingEngine("a b"), tool_parser=fail)
    assert (await converse(agent, 1, stream, tools=TOOLS))[1]["content"] == "a b"
    (call,) = read_model_calls(await agent.spans())
    assert call.response_token_ids == [*map(ord, "a b"), END]
    assert call.finish_reason == "stop"
    assert "lightning.tool_parser_failed" in caplog.text


@both_ways
async def test_a_parser_of_tokens_sees_what_the_text_has_lost(start: Start, stream: bool) -> None:
    class Parser:
        async def read(self, token_ids: Sequence[int], tools: Sequence[Any]) -> tuple[str, list[dict[str, Any]]]:
            assert list(tools) == TOOLS
            place = list(token_ids).index(END)
            name = "".join(map(chr, token_ids[:place]))
            call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": "{}"}}
            return "", [call]

    agent = await start(StreamingEngine("add"), tool_parser=Parser())
    said = await converse(agent, 1, stream, tools=TOOLS)
    assert not said[1]["content"]
    assert said[1]["tool_calls"][0]["function"]["name"] == "add"
    assert (await converse(agent, 1, stream))[1]["content"] == "add", "no tools are offered"


def test_a_wrong_engine_or_parser_is_named() -> None:
    with pytest.raises(ConfigError, match="has no `generate`"):
        TokensBackend(object(), Letters())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tool_parser is 'x'"):
        TokensBackend(Engine("x"), Letters(), tool_parser="x")


async def test_a_conversation_that_the_template_refuses_is_a_wrong_request(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> str:
        raise ValueError("Conversation roles must alternate user/assistant")

    monkeypatch.setattr(Letters, "apply_chat_template", refuse)
    error = await refused(await start(Engine("x")))
    assert error["code"] == "invalid_request"
    assert "Conversation roles must alternate" in error["message"]


async def test_a_completion_calls_no_tools(start: Start) -> None:
    agent = await start(Engine(CALL))
    assert (await ask(agent, "/completions", prompt="a", tools=TOOLS))["text"] == CALL
    assert (await agent.span()).attributes["agentlightning.ignored_parameters"] == ["tools"]


async def test_no_logprobs_besides_are_logprobs_too(start: Start) -> None:
    choice = await ask(await start(Engine("x")), "/completions", prompt="a", logprobs=0)
    assert choice["logprobs"]["token_logprobs"] == [-0.12, -0.001]


THINKS = ("<think>", "</think>")


class Opens(Letters):
    """Begins the model's thinking in the prompt, as the template of DeepSeek-R1 does."""

    def apply_chat_template(self, conversation: Any, **options: Any) -> str:
        text = super().apply_chat_template(conversation, **options)
        return f"{text}<think>\n" if options["add_generation_prompt"] else text


@both_ways
@pytest.mark.parametrize(
    ("tokenizer", "sampled", "reasoning", "content"),
    [
        (Letters(), "<think>7 < 8</think>yes", "7 < 8", "yes"),
        (Letters(), "\n<think></think>yes", None, "yes"),
        (Letters(), "<thinly>yes", None, "<thinly>yes"),
        (Letters(), "no </think>", None, "no </think>"),
        (Letters(), "<think>7 <", "7 <", ""),
        (Opens(), "7 </th</think>yes</think>", "7 </th", "yes</think>"),
        (Opens(), "7", "7", ""),
    ],
)
async def test_what_a_model_thinks_first_is_reasoning_and_no_content(
    start: Start, stream: bool, tokenizer: Letters, sampled: str, reasoning: str | None, content: str
) -> None:
    engine = StreamingEngine(sampled, "ok")
    agent = await start(engine, tokenizer, reasoning=THINKS)
    said = await converse(agent, 1, stream)
    assert (said[1]["content"] or "") == content
    assert said[1].get("reasoning_content") == reasoning
    await ask(agent, messages=[said[0], {"role": "assistant", "content": content}, *USER])
    assert engine.prompts[1][: len(engine.prompts[0])] == engine.prompts[0]
    assert sampled in tokenizer.decode(engine.prompts[1], skip_special_tokens=False), "the same conversation"


@both_ways
async def test_a_tool_call_that_is_only_thought_of_is_none(start: Start, stream: bool) -> None:
    agent = await start(StreamingEngine(f"<think>{CALL}?</think>{CALL}"), reasoning=THINKS)
    answer = (await converse(agent, 1, stream, tools=TOOLS))[1]
    assert (answer["reasoning_content"], len(answer["tool_calls"])) == (f"{CALL}?", 1)


@both_ways
async def test_a_parser_of_tokens_is_given_those_behind_the_thinking(start: Start, stream: bool) -> None:
    class Tokens:
        async def read(self, token_ids: Sequence[int], tools: Any) -> tuple[str, list[dict[str, Any]]]:
            return Letters().decode(token_ids, skip_special_tokens=True).upper(), []

    agent = await start(StreamingEngine("<think>a</think>b"), reasoning=THINKS, tool_parser=Tokens())
    answer = (await converse(agent, 1, stream, tools=TOOLS))[1]
    assert (answer["reasoning_content"], answer["content"]) == ("a", "B")


async def test_completions_are_given_as_they_were_sampled(start: Start) -> None:
    agent = await start(Engine("<think>a</think>b"), reasoning=THINKS)
    assert (await ask(agent, "/completions", prompt="x"))["text"] == "<think>a</think>b"
