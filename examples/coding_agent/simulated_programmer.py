"""A simulated model that writes small functions for the agent `smolagent`.

It knows a right and a careless version of each. Which one it writes, and whether it tries the description's calls
before it is done, is drawn by a hash of what it is told, and what it is told changes how likely that is. When it has
tried them, it reads what came out, and mends what is wrong.
"""

import re

from local_endpoint import ChatRequest
from python_functions import FUNCTIONS
from skill import Skill

NAME = re.compile(r"Python function (\w+)\(")
CALL = re.compile(r"(\w+\((?:[^.]|\.(?!\s))*?\)) is (.+?)\.(?=\s|$)")
TRIED = re.compile(r"^gives (.*) and should give (.*)$", re.MULTILINE)

READS_ALL = Skill.of(
    "reads the whole description",
    0.3,
    0.8,
    helps=r"edge cases|every sentence|\bempty\b",
    hurts=r"\bquick(ly)?\b|straight away",
)
TRIES_IT = Skill.of(
    "tries the calls of the description before it is done",
    0.15,
    0.95,
    helps=r"\b(try|test|check)\b.*\b(examples|calls)\b",
    hurts=r"straight away|one step",
)


def answer(request: ChatRequest) -> str:
    """Reply with a thought and code, as the agent's instructions want it."""
    said = [message.content or "" for message in request.messages if message.role == "user"]
    asked = NAME.search(said[0])
    function = FUNCTIONS.get(asked[1]) if asked else None
    if function is None:
        return _step("I do not know what to write.", 'final_answer("I cannot do this.")')
    if len(said) > 1:
        if "Error:" in said[-1] or any(given != wanted for given, wanted in TRIED.findall(said[-1])):
            return _step("Not all of this is right. I read the description again.", _save(function.right), _done())
        return _step("This is what it should be.", _done())
    source = function.right if READS_ALL.shown(said[0], request.seed) else function.careless
    if not TRIES_IT.shown(said[0], request.seed):
        return _step("I write the function.", _save(source), _done())
    calls = [f'print("gives", {call}, "and should give", {value})' for call, value in CALL.findall(said[0])]
    return _step("I write the function, and try it.", _save(source), source, *calls)


def _save(source: str) -> str:
    return f"from pathlib import Path\nPath('solution.py').write_text({source!r})"


def _done() -> str:
    return 'final_answer("It is in solution.py.")'


def _step(thought: str, *code: str) -> str:
    return f"Thought: {thought}\n<code>\n" + "\n".join(code) + "\n</code>"
