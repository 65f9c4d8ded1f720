"""The trace of an attempt as a tree: what happened, how long it took, what was said, what went wrong."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from lightning_core.adapter import ModelCall, TraceTree, read_model_calls
from lightning_core.adapter.calls import has_failed
from lightning_core.adapter.dialects import TOOL_INPUTS, TOOL_RESULTS
from lightning_core.emitter import get_message_value, get_rewards_from_span
from lightning_core.rewards import is_late
from lightning_core.runner.outcome import is_the_users
from lightning_core.semconv import AGL_EXCEPTION, AGL_OBJECT, LightningSpanAttributes
from lightning_core.texts import seconds, shortened, token_words, visible
from lightning_core.types import Span

MAX_CHARACTERS = 100
"""How much of a message is shown."""
MAX_MESSAGES = 6
"""How many messages of one call are shown, the newest."""

MAX_ATTRIBUTES = 8
"""How many attributes of one's own a span shows."""

_CONVENTIONS = (
    *(f"{each}." for each in ("agentlightning", "agentops", "code", "error", "exception", "gen_ai", "http", "llm")),
    *(f"{each}." for each in ("net", "network", "openai", "openinference", "otel", "server", "service", "telemetry")),
    *(f"{each}." for each in ("thread", "tool", "traceloop", "url", "user_agent", "weave")),
)
"""Attributes that begin so are those of OpenTelemetry, of instrumentors, or ours."""

_DIM, _ERROR, _GOOD = "dim", "red", "green"


@dataclass(slots=True)
class Branch:
    """One span, as it is shown."""

    label: Text
    lines: list[Text] = field(default_factory=list)
    """The lines below it, which describe it."""
    depth: int = 0
    """0 for what lies in no other span."""


def print_trace(console: Console, title: Text, spans: Sequence[Span], *, full: bool = False) -> None:
    """Print the spans of an attempt: as a tree on a terminal, else as text that is indented by what lies in what.

    Args:
        console: Where to.
        title: What stands above it.
        spans: Of the attempt.
        full: Whether to show texts whole, and all messages and attributes.
    """
    branches = list(trace_branches(spans, full=full))
    if not console.is_terminal:
        console.print(title)
        for branch in branches:
            indent = "  " * (branch.depth + 1)
            console.print(Text(indent).append_text(branch.label))
            for line in branch.lines:
                console.print(Text(indent + "  ").append_text(line))
        return
    root = Tree(title, guide_style=_DIM)
    path = [root]
    for branch in branches:
        label = Text("\n").join([branch.label, *branch.lines])
        if not full:
            label.no_wrap, label.overflow = True, "ellipsis"
        del path[branch.depth + 1 :]
        path.append(path[-1].add(label))
    console.print(root, soft_wrap=False)


def trace_branches(spans: Sequence[Span], *, full: bool = False) -> Iterator[Branch]:
    """Yield each span as it is shown, a parent before what lies within it, in the order of the attempt."""
    most = 10**9 if full else MAX_CHARACTERS
    if not spans:
        return
    tree = TraceTree.from_spans(spans)
    recorded = {span.span_id for span in spans}
    roots = [tree] if tree.id in recorded or tree.id != "virtual-root" else tree.children
    nodes = [(node, 0) for node in reversed(roots)]
    calls = {id(span): call for call in read_model_calls(spans) for span in call.spans}
    shown: set[int] = set()
    raised: set[str] = set()
    conversation: Sequence[dict[str, Any]] = ()
    while nodes:
        node, depth = nodes.pop()
        nodes += [(child, depth + 1) for child in reversed(node.children)]
        if node.id not in recorded:
            yield Branch(Text("(a span that was not recorded)", style=_DIM), depth=depth)
            continue
        call = calls.get(id(node.span))
        if call is None:
            yield _branch(node.span, depth, raised, most)
        elif call.order in shown:  # another source told of it above
            yield Branch(Text(visible(node.span.name), style=_DIM), depth=depth)
        else:
            shown.add(call.order)
            yield _call_branch(node.span, call, conversation, depth, raised, full=full)
            conversation = (*call.messages, *call.answers[:1])


def _branch(span: Span, depth: int, raised: set[str], most: int) -> Branch:
    label = Text(visible(span.name.removeprefix("agentlightning.")))
    branch = Branch(label, depth=depth)
    try:
        rewards = get_rewards_from_span(span)
    except ValueError as exc:
        branch.lines.append(Text(shortened(str(exc), 3 * MAX_CHARACTERS), style=_ERROR))
        return branch
    if rewards:
        words = ", ".join(f"{reward.name} {reward.value:g}" for reward in rewards)
        branch.label = Text(f"reward {visible(words).removeprefix('primary ')}", style=_GOOD)
        if is_late(span.attributes):
            branch.label = Text(f"{branch.label.plain}  came after the end, does not count", style=_DIM)
    elif span.name == AGL_EXCEPTION:
        branch.label, *branch.lines = _exception_lines(span.attributes, raised)
        return branch
    elif isinstance(span.attributes.get(LightningSpanAttributes.MESSAGE_BODY.value), str):
        label.append(f"  {shortened(get_message_value(span), most)}", style=_DIM)
    elif span.name == AGL_OBJECT:
        label.append(f"  {shortened(_object(span), most)}", style=_DIM)
    else:
        named = span.attributes.get(LightningSpanAttributes.OPERATION_NAME.value)
        if isinstance(named, str):
            branch.label = Text(visible(named))
        branch.lines += [*_operation_lines(span, most), *_own_lines(span, most)]
    _add_duration(branch.label, span)
    _add_error(branch, span, None, raised)
    return branch


def _call_branch(
    span: Span, call: ModelCall, conversation: Sequence[dict[str, Any]], depth: int, raised: set[str], *, full: bool
) -> Branch:
    label = Text(visible(span.name))
    if call.model is not None and call.model not in span.name:
        label.append(f" {visible(call.model)}", style="bold")
    branch = Branch(label, depth=depth)
    _add_duration(label, span)
    words = token_words(call.usage)
    if words:
        label.append("  " + ", ".join(words), style=_DIM)
    if call.finish_reason not in (None, "stop", "tool_calls"):
        label.append(f"  {call.finish_reason}", style="yellow")
    known = repeated(conversation, call.messages)
    new = call.messages[known:]
    new = new if full else new[-MAX_MESSAGES:]
    hidden = len(call.messages) - len(new)
    if hidden:
        branch.lines.append(Text(f"… {hidden} earlier message{'' if hidden == 1 else 's'}", style=_DIM))
    for message in new:
        branch.lines += _message_lines(message, full=full)
    for answer in call.answers:
        branch.lines += _message_lines(answer, mark="→ ", full=full)
    _add_error(branch, span, call.error, raised)
    return branch


def _add_duration(label: Text, span: Span) -> None:
    if span.start_time is not None and span.end_time is not None and span.end_time - span.start_time >= 0.0005:
        label.append(f"  {seconds(span.end_time - span.start_time)}", style="cyan")


def _add_error(branch: Branch, span: Span, error: str | None, raised: set[str]) -> None:
    if not has_failed(span):
        return
    branch.label.stylize(_ERROR)
    recorded = next((event.attributes for event in span.events if event.name == "exception"), None)
    if recorded is not None:
        branch.lines += _exception_lines(recorded, raised)
    else:
        cause = error or span.status.description or str(span.attributes.get("error.type", "failed"))
        branch.lines.append(Text(shortened(cause, 3 * MAX_CHARACTERS), style=_ERROR))


def _exception_lines(attributes: dict[str, Any], raised: set[str]) -> list[Text]:
    """Say what was raised, and the first time also where, and by what it was caused.

    Args:
        attributes: OpenTelemetry's, of an exception.
        raised: What has been told so far; an exception may pass through many spans.
    """
    kind = str(attributes.get("exception.type", "Exception"))
    words = f"{kind}: {attributes.get('exception.message', '')}".removesuffix(": ")
    lines = [Text(shortened(words, 3 * MAX_CHARACTERS), style=_ERROR)]
    if words in raised:
        return lines
    raised.add(words)
    *causes, trace = _CHAINED.split(str(attributes.get("exception.stacktrace", "")))
    lines += _place(trace)
    for cause in reversed(causes):
        error = next((line for line in cause.splitlines() if line and not line.startswith((" ", "Traceback "))), "?")
        lines.append(Text(f"caused by {shortened(error, 3 * MAX_CHARACTERS)}", style=_ERROR))
        lines += _place(cause)
    return lines


_CHAINED = re.compile(
    r"\n\n(?:The above exception was the direct cause of|During handling of the above exception, another) .*\n\n"
)
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)


def _place(trace: str) -> list[Text]:
    """Say where the innermost frame of the user's code is in a trace; without one, where the innermost is."""
    frames = _FRAME.findall(trace)
    frames = [frame for frame in frames if is_the_users(frame[0])] or frames
    return [Text(f"at {file}:{line} in {name}", style=_DIM) for file, line, name in frames[-1:]]


def _operation_lines(span: Span, most: int) -> list[Text]:
    """Show what went into an operation and what came out, or a tool's parameters and result."""
    lines = []
    for word, prefixes in (("in", TOOL_INPUTS), ("out", TOOL_RESULTS)):
        values = {
            name.removeprefix(prefix).lstrip("."): value
            for prefix in prefixes
            for name, value in span.attributes.items()
            if name == prefix or name.startswith(f"{prefix}.")
        }
        if values:
            shown = ", ".join(f"{name}={value}" if name else str(value) for name, value in values.items())
            lines.append(Text(f"{word}: {shortened(shown, most)}", style=_DIM))
    return lines


def _own_lines(span: Span, most: int) -> list[Text]:
    """Show the attributes that the agent gave a span: those that no convention names."""
    attributes = {name: value for name, value in span.attributes.items() if not name.startswith(_CONVENTIONS)}
    lines = [Text(shortened(f"{name}: {value}", most), style=_DIM) for name, value in attributes.items()]
    count = MAX_ATTRIBUTES if most == MAX_CHARACTERS else len(lines)
    more = len(lines) - count
    return [*lines[:count], *([Text(f"… {more} more attributes", style=_DIM)] if more > 0 else [])]


def _object(span: Span) -> Any:
    names = (LightningSpanAttributes.OBJECT_LITERAL.value, LightningSpanAttributes.OBJECT_JSON.value)
    return next((value for name in names if (value := span.attributes.get(name)) is not None), "")


def _message_lines(message: dict[str, Any], *, mark: str = "", full: bool) -> list[Text]:
    """Show a message in one line; a full one in as many as it has."""
    line = Text(f"{mark}{shortened(message.get('role', '?'), MAX_CHARACTERS)}: ", style="bold" if mark else _DIM)
    parts = [content_text(message.get("content"))]
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        parts.append(f"{function.get('name')}({function.get('arguments') or ''})")
    if not full:
        return [line.append(shortened(" ".join(filter(None, parts)), MAX_CHARACTERS), style="not bold")]
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    parts[:0] = [f"({reasoning})"] if reasoning else []
    first, *others = visible("\n".join(filter(None, parts))).splitlines() or [""]
    return [line.append(first, style="not bold"), *(Text(f"  {each}") for each in others)]


def content_text(content: Any, *, between: str = " ") -> str:
    """Return what a message says, of parts all, in a text."""
    if isinstance(content, list | tuple):
        return between.join(
            str(part.get("text") or f"[{part.get('type', 'part')}]") if isinstance(part, dict) else str(part)
            for part in content
        )
    return "" if content is None else str(content)


def repeated(before: Sequence[Any], now: Sequence[Any]) -> int:
    """Count the messages that the call before has said already, from the first on."""
    count = 0
    for old, new in zip(before, now, strict=False):
        if (old.get("role"), content_text(old.get("content"))) != (new.get("role"), content_text(new.get("content"))):
            break
        count += 1
    return count
