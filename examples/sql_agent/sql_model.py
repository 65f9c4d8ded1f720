"""A stand-in for the model of the SQL agent: it knows the right query, and spoils it on purpose.

Whether it spoils it, and how, is drawn by a hash of the prompt; what the prompt asks for, it does more often. A third
of its worst queries wants to change the database. As the one who checks, it sees errors, and overlooks six in ten of
the other wrong queries. Used where `OPENAI_API_KEY` is not set.
"""

import re
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what the examples share

from databases import QUESTIONS
from local_endpoint import ChatRequest, LocalEndpoint, ToolCall
from prompt_editor import PromptEditor
from skill import Skill

CHECKED = re.compile(r"End with CORRECT or INCORRECT\.$")
NEVER = r"(?!)"
ONLY_READS = Skill.of("only reads", 0.8, 0.98, helps=r"only read|never change|SELECT", hurts=NEVER)
KNOWS_NAMES = Skill.of("uses the names of the schema", 0.6, 0.97, helps=r"schema|exact names", hurts=r"from memory")
NO_EXTRAS = Skill.of(
    "returns what is asked for", 0.3, 0.97, helps=r"only the columns|nothing more", hurts=r"all details"
)
NOTICES = Skill.of("notices a wrong query that runs", 0.4, 0.4, helps=NEVER, hurts=NEVER)
PLAIN = Skill.of("replies with the query alone", 0.75, 0.98, helps=r"query alone|code fence|```", hurts=r"explain")

EDITS = (
    "Be polite.",
    "Explain the query.",
    "Use the exact names of the schema.",
    "Write a SELECT statement.",
    "Only read: never change the database.",
    "Return only the columns that are asked for.",
    "Return nothing more than what the question wants.",
    "Reply with the query alone.",
    "Put the query into a code fence.",
    "Show all details.",
    "You are an expert.",
)
editor = PromptEditor(EDITS, max_edits=2)


def answer(request: ChatRequest) -> str | list[ToolCall]:
    """Answer as the model that the agent calls, or as the one that improves its prompt."""
    return editor.reply(request) or (check_query(request) if CHECKED.search(request.prompt) else write_query(request))


def check_query(request: ChatRequest) -> str:
    """Say whether the query of the prompt is right, as far as it notices."""
    prompt = request.prompt
    is_wrong = "It gave error:" in prompt or not any(f"Query: {each['gold']}\n" in prompt for each in QUESTIONS)
    if is_wrong and ("It gave error:" in prompt or NOTICES.shown(prompt, request.seed)):
        return "It does not give what was asked for.\nINCORRECT"
    return "CORRECT"


def write_query(request: ChatRequest) -> str:
    """Write the query of the question that the prompt has, more or less well."""
    prompt, seed = request.prompt, request.seed
    known = [each for each in QUESTIONS if each["question"] in prompt]
    if not known:
        return "What would you like to know?"
    query: str = known[0]["gold"]
    if not ONLY_READS.shown(prompt, seed):
        return "DELETE FROM " + str(re.findall(r"FROM (\w+)", query)[0])
    if not KNOWS_NAMES.shown(prompt, seed):
        query = re.sub(r"FROM (\w+)", r"FROM \1s", query, count=1)
    if not NO_EXTRAS.shown(prompt, seed):
        query = query.replace("SELECT ", "SELECT 'answer', ", 1)
    return f"```sql\n{query}\n```" if PLAIN.shown(prompt, seed) else f"I would ask {query}, I think."


played_model = LocalEndpoint(answer)
"""Serves the stand-in during a run, unless there is a key for a real model."""
