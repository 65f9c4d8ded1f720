"""The endpoint that plays a real model's recorded answers back."""

import re
import sys
from functools import cache
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what the examples share

from local_endpoint import CannotAnswer, ChatRequest, LocalEndpoint
from reading_critic import ReadingCritic
from recorded_data import Row, all_rows

NOTICE = (
    "PLAYED BACK: recorded answers of a real model (code-davinci-002), and a few rules with a pool of edits in place "
    "of the model that improves the prompt. For a real model remove `hooks` from the config and set OPENAI_API_KEY."
)

ASKS_TO_REASON = re.compile(
    r"step[ -]by[ -]step|\bthink\b|\breason(ing)?\b|\bexplain(ing)?\b|\bexplanation\b|\bjustify\b|\bkeep track\b"
    r"|\bintermediate (steps|results)\b|\bshow (your|the) (work|working|steps)\b"
    r"|\bwork (it|this) (out|through)\b|\bwalk (me )?through\b",
    re.IGNORECASE,
)
FORBIDS_TO_REASON = re.compile(
    r"\b(do not|don't|never|no|without|avoid|instead of|rather than)\b(\W+\w+){0,2}\W+"
    rf"({ASKS_TO_REASON.pattern}|\bsteps\b|\bcomments?\b)"
    r"|\b(only|just|nothing but) (the|an|one|your) (final )?(answer|option|letter|result)\b"
    r"|\b(answer|option|letter|result) (alone|only)\b|\bnothing else\b",
    re.IGNORECASE,
)

improver = ReadingCritic()


def asks_to_reason(instructions: str) -> bool:
    """Return whether a prompt, the question taken out, asks for reasoning.

    The last sentence that asks for reasoning or forbids it decides; without such a sentence it is False.
    """
    decision = False
    for sentence in re.split(r"(?<=[.!?;:])\s+|\n", instructions):
        if FORBIDS_TO_REASON.search(sentence):
            decision = False
        elif ASKS_TO_REASON.search(sentence):
            decision = True
    return decision


def play_back(request: ChatRequest) -> str:
    """Return the recorded answer to the question in the request.

    Raises:
        CannotAnswer: When no recorded question is in it.
    """
    prompt = request.prompt
    for row in all_rows():
        instructions, question, rest = prompt.partition(row["question"])
        if question:
            return recorded_reply(f"{instructions}\n{rest}", question)
    raise CannotAnswer("the request holds none of the recorded questions word for word, so there is no answer to it")


def recorded_reply(instructions: str, question: str) -> str:
    """Return the recorded answer to a question, for a prompt with these instructions around it."""
    row = _rows_by_question()[question]
    return row["step_by_step"] if asks_to_reason(instructions) else row["direct"]


@cache
def _rows_by_question() -> dict[str, Row]:
    return {row["question"]: row for row in all_rows()}


def answer(request: ChatRequest) -> str:
    """Answer as the model that the agent calls, or as the one that improves its prompt."""
    return improver.reply(request) or play_back(request)


playback_endpoint = LocalEndpoint(answer, notice=NOTICE, yield_to_key=False)
"""Plays the recorded answers back during a run, also where there is a key for a real model."""
