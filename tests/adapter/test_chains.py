import json
import logging
from typing import Any

import pytest

from lightning_core.adapter import TraceToTrajectories
from lightning_core.types import Span

Message = dict[str, Any]
TOOL = {"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object"}}}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


class Attempt:
    """Calls whose tokens are the characters of what was said, unless a test says otherwise."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def call(
        self, *said: Message, answer: str = "yes", tools: Any = (), prompt: str | None = None, **attributes: Any
    ) -> None:
        text = "".join(f"{message['role'][0]}:{message['content']}\n" for message in said) + "a:"
        number = len(self.spans) + 1
        ids = {"prompt_token_ids": [*map(ord, prompt or text)], "response_token_ids": [*map(ord, f"{answer}\n")]}
        recorded = {
            "gen_ai.operation.name": "chat",
            "gen_ai.input.messages": json.dumps(said),
            "gen_ai.output.messages": json.dumps([assistant(answer)]),
            **({"gen_ai.tool.definitions": json.dumps(tools)} if tools else {}),
            **ids,
            **attributes,
        }
        span = Span.from_attributes(
            rollout_id="r", attempt_id="a", sequence_id=number, name="chat", attributes=recorded
        )
        self.spans.append(span)

    def starts(self, **options: Any) -> list[str]:
        return [row.began for row in TraceToTrajectories(**options).adapt(self.spans).rows]


@pytest.fixture
def attempt() -> Attempt:
    found = Attempt()
    found.call(system("be good"), user("hi"))
    return found


BEGUN = [system("be good"), user("hi")]


@pytest.mark.parametrize(
    ("said", "more", "start"),
    [
        ([*BEGUN, assistant("yes"), user("on")], {"prompt": "other tokens"}, "text_only"),
        ([*BEGUN, assistant(" yes"), user("on")], {}, "text_only"),
        ([*BEGUN, assistant("no"), user("on")], {}, "history_edited"),
        ([system("be bad"), user("hi")], {}, "other_conversation"),
        ([*BEGUN, user("summed up")], {}, "history_edited"),
        ([*BEGUN, assistant("yes"), user("on")], {"prompt": "other tokens", "tools": [TOOL]}, "tools_changed"),
        (BEGUN, {}, "same_prompt"),
        ([system("a title, please"), user("of this")], {}, "other_conversation"),
        ([], {"gen_ai.input.messages": "[]", "prompt": "x"}, "unknown"),
    ],
)
def test_a_row_says_why_it_begins(attempt: Attempt, said: list[Message], more: dict[str, Any], start: str) -> None:
    attempt.call(*said, **more)
    assert attempt.starts() == ["first_call", start]


def test_a_continued_conversation_is_one_row(attempt: Attempt) -> None:
    attempt.call(*BEGUN, assistant("yes"), user("on"))
    assert attempt.starts() == ["first_call"]


def test_other_instructions_for_the_same_turns_edit_the_history(attempt: Attempt) -> None:
    attempt.call(*BEGUN, assistant("yes"), user("on"))
    attempt.call(system("be bad"), user("hi"), assistant("yes"), user("on"), assistant("yes"), user("and on"))
    assert attempt.starts() == ["first_call", "history_edited"]


def test_a_branch_of_a_row_that_went_on_is_one(attempt: Attempt) -> None:
    attempt.call(*BEGUN, assistant("yes"), user("on"))
    attempt.call(*BEGUN, assistant("yes"), user("aside"))
    assert attempt.starts() == ["first_call", "branched"]


@pytest.mark.parametrize(
    ("said", "start"),
    [
        ([assistant(" yes"), user("and on")], "text_only"),
        ([assistant("no"), user("and on")], "history_edited"),
        ([], "same_prompt"),
    ],
)
def test_the_latest_call_of_the_conversation_says_why_a_row_breaks_off(
    attempt: Attempt, said: list[Message], start: str
) -> None:
    begun = [*BEGUN, assistant("yes"), user("on")]
    attempt.call(*begun)
    attempt.call(*begun, *said)  # the tokens of the first turn are there, too
    assert attempt.starts() == ["first_call", start]


def test_further_choices_are_samples_of_the_same_prompt(attempt: Attempt) -> None:
    attempt.spans.clear()
    attempt.call(user("hi"), response_token_ids=[[1], [2]])
    assert attempt.starts() == ["first_call", "same_prompt"]


def with_side_calls() -> Attempt:
    """A title, two turns of the task whose tokens do not merge, and a sub-agent."""
    found = Attempt()
    found.call(system("You are a title generator"), user("hi"), answer="a very long title, longer than all else")
    found.call(*BEGUN)
    found.call(*BEGUN, assistant("yes"), user("on"), prompt="other tokens")
    found.call(system("You search"), user("for it"))
    return found


def test_all_conversations_are_trained_on_unless_the_caller_says_otherwise() -> None:
    attempt = with_side_calls()
    found = TraceToTrajectories().adapt(attempt.spans)
    assert [row.began for row in found.rows] == ["first_call", "other_conversation", "text_only", "other_conversation"]
    assert found.left_out == ()


def test_calls_are_left_out_by_their_instructions(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    adapter = TraceToTrajectories(leave_out="title generator|You search")
    for _ in range(2):
        found = adapter.adapt(with_side_calls().spans)
        assert [call.sequence_id for call in found.left_out] == [1, 4]
        assert [row.calls[0].call.sequence_id for row in found.rows] == [2, 3]
    assert caplog.text.count("lightning.calls_left_out calls=2 of=4") == 1


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"leave_out='\(' is not a regular expression"):
        TraceToTrajectories(leave_out="(")
