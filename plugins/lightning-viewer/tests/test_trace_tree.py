"""The trace of an attempt as a tree."""

import io
from typing import Any

from lightning_viewer.trace_tree import print_trace
from rich.console import Console
from rich.text import Text

from lightning_core import LitAgentRunner, OtelTracer, emit_message, emit_object, emit_reward, operation, rollout
from lightning_core.store.memory import InMemoryLightningStore
from lightning_core.tracer import get_active_tracer
from lightning_core.types import Span


def chat(**more: Any) -> dict[str, Any]:
    """Return the attributes of a model call."""
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.response.model": "small",
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.prompt.0.role": "system",
        "gen_ai.prompt.0.content": "You keep\na shop.",
        "gen_ai.prompt.1.role": "user",
        "gen_ai.prompt.1.content": "What do 3 apples cost?",
        **more,
    }


TOOL_CALL = {
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.tool_calls.0.name": "look_up",
    "gen_ai.completion.0.tool_calls.0.arguments": '{"product": "apple"}',
}
SECOND_TURN = {
    "gen_ai.prompt.2.role": "assistant",
    "gen_ai.prompt.2.tool_calls.0.name": "look_up",
    "gen_ai.prompt.2.tool_calls.0.arguments": '{"product": "apple"}',
    "gen_ai.prompt.3.role": "tool",
    "gen_ai.prompt.3.content": '{"price": 2}',
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": "Answer: 6",
}


@operation(name="price")
def look_up(product: str) -> int:
    return {"apple": 2}[product]


@rollout
async def shop(task: str) -> None:
    tracer = get_active_tracer()
    assert tracer is not None
    with tracer.operation_context("agent", {}):
        with tracer.operation_context("chat", chat(**TOOL_CALL)):
            pass
        look_up(task)
        with tracer.operation_context("chat", chat(**SECOND_TURN)):
            pass
        emit_message("[b]done[/b] :smile: " + "and " * 40)
        emit_object({"total": 6})
    emit_reward({"right": 1.0, "short": 0.5})


@rollout
async def unlucky(task: str) -> None:
    try:
        look_up(task)
    except KeyError as exc:
        raise ValueError("no price") from exc


async def spans_of(agent: Any, task: str) -> list[Span]:
    store = InMemoryLightningStore()
    runner = LitAgentRunner(OtelTracer())
    with runner.run_context(agent=agent, store=store):
        try:
            rollout_id = (await runner.step(task)).rollout_id
        except ValueError:
            (ended,) = await store.query_rollouts()
            rollout_id = ended.rollout_id
    return list(await store.query_spans(rollout_id))


def shown(spans: list[Span], *, full: bool = False, **options: Any) -> list[str]:
    for span in spans:  # times differ from run to run
        span.start_time, span.end_time = 10.0, 10.5 if span.name in ("agent", "chat") else 10.0
    file = io.StringIO()
    console = Console(file=file, markup=False, emoji=False, highlight=False, **options)
    print_trace(console, Text("shop"), spans, full=full)
    return [line.rstrip() for line in file.getvalue().splitlines()]


async def test_without_a_terminal_it_is_text_indented_by_what_lies_in_what() -> None:
    assert shown(await spans_of(shop, "apple"), soft_wrap=True) == [
        "shop",
        "  agent  500 ms",
        "    chat small  500 ms  12 tokens in, 3 out",
        "      system: You keep a shop.",
        "      user: What do 3 apples cost?",
        '      → assistant: look_up({"product": "apple"})',
        "    price",
        "      in: product=apple",
        "      out: 2",
        "    chat small  500 ms  12 tokens in, 3 out",
        "      … 3 earlier messages",
        '      tool: {"price": 2}',
        "      → assistant: Answer: 6",
        "    message  " + ("[b]done[/b] :smile: " + "and " * 40)[:99] + "…",
        '    object  {"total": 6}',
        "  reward right 1, short 0.5",
    ]


async def test_in_full_it_has_whole_texts_with_their_lines_and_all_messages_and_attributes() -> None:
    lines = shown(await spans_of(shop, "apple"), soft_wrap=True, full=True)
    place = lines.index("      system: You keep")
    assert lines[place + 1 : place + 3] == ["        a shop.", "      user: What do 3 apples cost?"]
    assert "    message  " + ("[b]done[/b] :smile: " + "and " * 40).strip() in lines
    messages = {f"gen_ai.prompt.{number}.{name}": "x" for number in range(10) for name in ("role", "content")}
    attributes = {
        **chat(),
        **messages,
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": "y" * 500,
    }
    call = Span.from_attributes(attributes=attributes, name="chat", rollout_id="ro-1")
    own = Span.from_attributes(attributes={f"a{n}": n for n in range(12)}, name="own", rollout_id="ro-1")
    brief, whole = shown([call, own], soft_wrap=True), shown([call, own], soft_wrap=True, full=True)
    assert (brief.count("    x: x"), whole.count("    x: x")) == (6, 10)
    assert f"    → assistant: {'y' * 500}" in whole
    assert ("    a11: 11" in brief, "    a11: 11" in whole) == (False, True)
    tree = shown([call], force_terminal=True, color_system=None, width=40, full=True)
    assert "".join(tree).count("y") == 500


async def test_on_a_terminal_it_is_a_tree_that_fits_its_width() -> None:
    lines = shown(await spans_of(shop, "apple"), force_terminal=True, color_system=None, width=40)
    assert lines[:4] == [
        "shop",
        "├── agent  500 ms",
        "│   ├── chat small  500 ms  12 tokens i…",
        "│   │   system: You keep a shop.",
    ]
    assert lines[-1] == "└── reward right 1, short 0.5"
    assert max(map(len, lines)) <= 40


async def test_errors_are_red_and_tell_where_and_by_what_they_were_caused() -> None:
    spans = await spans_of(unlucky, "pear")
    lines = shown(spans, soft_wrap=True)
    operation_line, error, place, again, *rest = [line.strip() for line in lines[1:] if "in:" not in line]
    assert (operation_line, error) == ("price", "KeyError: 'pear'")
    assert place.startswith(f"at {__file__}:")
    assert place.endswith(" in look_up")
    assert again == "ValueError: no price"
    assert rest[0].endswith(" in unlucky")
    assert rest[1].startswith("caused by KeyError: 'pear'")
    red = shown(spans, force_terminal=True, color_system="standard", width=200)
    assert any("\x1b[31mValueError: no price" in line for line in red)


def test_span_whose_parent_was_not_recorded_is_still_there() -> None:
    child = Span.from_attributes(attributes={}, name="child", parent_id="0123456789abcdef", rollout_id="ro-1")
    assert shown([child]) == ["shop", "  (a span that was not recorded)", "    child"]


def test_call_that_two_sources_recorded_is_told_once() -> None:
    outer = Span.from_attributes(attributes=chat(**{"gen_ai.response.id": "r1"}), name="outer", rollout_id="ro-1")
    inner = Span.from_attributes(
        attributes=chat(**{"gen_ai.response.id": "r1"}), name="inner", parent_id=outer.span_id, rollout_id="ro-1"
    )
    assert shown([outer, inner]) == [
        "shop",
        "  outer small  12 tokens in, 3 out",
        "    system: You keep a shop.",
        "    user: What do 3 apples cost?",
        "    inner",
    ]
