"""A stand-in for the model of the agent: it knows the answers, and gives one only where a passage that it got has it.

What it searches for, and how it answers, is drawn by a hash of the prompt; what the prompt asks for, it does more
often. Used where `OPENAI_API_KEY` is not set.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what the examples share

from local_endpoint import ChatRequest, LocalEndpoint, ToolCall
from prompt_editor import PromptEditor
from questions import QUESTIONS
from skill import Skill

NEVER = r"(?!)"
MAX_SEARCHES = 2
SEARCHES = Skill.of("searches at all", 0.8, 0.98, helps=r"search|tool|look it up", hurts=r"from memory")
WHOLE = Skill.of("searches for the whole question", 0.5, 0.97, helps=r"whole question|all its words", hurts=NEVER)
AGAIN = Skill.of("searches again", 0.3, 0.97, helps=r"search again|another search", hurts=r"quick")
BRIEF = Skill.of("gives the answer alone", 0.6, 0.97, helps=r"answer alone|fewest words", hurts=r"explain|polite")

EDITS = (
    "Be polite.",
    "Explain your answer.",
    "Answer from memory where you can.",
    "Use the tool first.",
    "Search before you answer.",
    "Search for the whole question.",
    "A query has the question, with all its words.",
    "Where no passage has the answer, search again in other words.",
    "Be quick.",
    "Reply with the answer alone.",
    "Answer in the fewest words, as they stand in the passage.",
    "You are an expert.",
)
editor = PromptEditor(EDITS, max_edits=2)


def answer(request: ChatRequest) -> str | list[ToolCall]:
    """Answer as the model that the agent calls, or as the one that improves its prompt."""
    return editor.reply(request) or read(request)


def read(request: ChatRequest) -> str | list[ToolCall]:
    """Search, once or again, and answer by what was found."""
    prompt, seed, passages = request.prompt, request.seed, request.tool_results
    known = [each for each in QUESTIONS if each["question"] in prompt]
    if not known:
        return "What would you like to know?"
    question, right = known[0]["question"], known[0]["answer"]
    if not passages:
        if not SEARCHES.shown(prompt, seed):
            return "I believe that it is 42."
        return [ToolCall("search", {"query": question if WHOLE.shown(prompt, seed) else _some_words(question)})]
    if not any(right.lower() in passage.lower() for passage in passages):
        if len(passages) < MAX_SEARCHES and AGAIN.shown(prompt, seed):
            return [ToolCall("search", {"query": question})]
        return "The passages do not say."
    return right if BRIEF.shown(prompt, seed) else f"The documentation says that it is {right}."


def _some_words(question: str) -> str:
    return " ".join(question.split()[:3])


played_model = LocalEndpoint(answer)
"""Serves the stand-in during a run, unless there is a key for a real model."""
