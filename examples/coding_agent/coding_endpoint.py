"""Serves the simulated models of this example until Ctrl-C: `python coding_endpoint.py [PORT]`."""

import asyncio
import signal
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what the examples share

import simulated_programmer
from local_endpoint import ChatRequest, serve
from prompt_editor import PromptEditor

EDITS = (
    "You are an experienced programmer.",
    "Write clean code.",
    "Prefer the standard library.",
    "Use plain names.",
    "Write a docstring.",
    "Add type hints.",
    "Answer straight away.",
    "Be quick.",
    "Do it in one step.",
    "Do not explain the code.",
    "Think of edge cases.",
    "Read every sentence of the description.",
    "Before you finish, try the examples of the description.",
    "Test the function with the given calls, and mend what is wrong.",
    "Check that the examples give what they should.",
)
"""What the simulated editor draws from. Which of them help is nowhere said."""

editor = PromptEditor(EDITS, max_edits=2)


def answer(request: ChatRequest) -> str:
    """Answer as the agent's model, or as the one that improves its prompt."""
    return editor.reply(request) or simulated_programmer.answer(request)


async def main(port: int) -> None:
    """Serve until SIGINT or SIGTERM."""
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with serve(answer, port=port) as url:
        print(f"SIMULATED models answer at {url}", flush=True)
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 8765))
