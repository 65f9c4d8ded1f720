"""A stand-in for the model of the room selector: it really reads the tool's answer, and is careless on purpose.

Whether it takes care of a thing is drawn by a hash of the prompt. What the prompt asks for, it does more often. Used
where `OPENAI_API_KEY` is not set.
"""

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what the examples share

from local_endpoint import ChatRequest, LocalEndpoint, ToolCall, serve
from prompt_editor import PromptEditor
from skill import Skill

REQUEST = re.compile(r"for (\d+) people on (\S+) at (\d\d:\d\d) for (\d+) minutes\.(?: They need: ([^.]+)\.)?")
NEVER = r"(?!)"
IS_FREE = Skill.of("takes free rooms only", 0.75, 0.98, helps=r"\b(free|availab|booked)", hurts=NEVER)
FITS = Skill.of("counts the people", 0.8, 0.98, helps=r"capacity|enough seats|everyone fits", hurts=NEVER)
HAS_ALL = Skill.of("checks the equipment", 0.75, 0.97, helps=r"equipment|every need|all requirements", hurts=NEVER)
SMALLEST = Skill.of("wastes no seats", 0.35, 0.96, helps=r"smallest", hurts=r"\b(comfort|generous)")
BRIEF = Skill.of(
    "gives the name alone", 0.6, 0.98, helps=r"name of the room|room's name|nothing else", hurts=r"explain"
)

EDITS = (
    "Be polite.",
    "Explain your choice in detail.",
    "Only free rooms count.",
    "Never take a room that is booked.",
    "Mind the capacity: everyone has to sit.",
    "Check that all requirements are met.",
    "Compare the equipment with the request.",
    "Of the rooms that fit, take the smallest; of those, the nearest.",
    "A generous room is a comfortable room.",
    "Reply with the name of the room and nothing else.",
    "The last line is the room's name alone.",
    "Use the tool first.",
)
editor = PromptEditor(EDITS, max_edits=2)


def answer(request: ChatRequest) -> str | list[ToolCall]:
    """Answer as the model that the agent calls, or as the one that improves its prompt."""
    return editor.reply(request) or choose_room(request)


def choose_room(request: ChatRequest) -> str | list[ToolCall]:
    """Ask for the rooms, then choose one of them."""
    asked = REQUEST.search(request.prompt)
    if asked is None:
        return "Which room do you need?"
    people, date, time, minutes, needs = asked.groups()
    if not request.tool_results:
        return [ToolCall("look_up_rooms", {"date": date, "time": time, "minutes": int(minutes)})]
    rooms: list[dict[str, Any]] = json.loads(request.tool_results[0])
    needed = set((needs or "").split(", ")) - {""}
    wheelchair = "wheelchair" in request.prompt
    for skill, fitting in (
        (IS_FREE, [room for room in rooms if room["free"]]),
        (FITS, [room for room in rooms if room["capacity"] >= int(people)]),
        (
            HAS_ALL,
            [room for room in rooms if needed <= {*room["equipment"]} and (room["accessible"] or not wheelchair)],
        ),
    ):
        if skill.shown(request.prompt, request.seed):
            rooms = [room for room in rooms if room in fitting] or rooms
    order = 1 if SMALLEST.shown(request.prompt, request.seed) else -1
    room = min(rooms, key=lambda room: (order * room["capacity"], room["distance_m"]))["id"]
    return str(room) if BRIEF.shown(request.prompt, request.seed) else f"I would take {room}, which is free."


played_model = LocalEndpoint(answer)
"""Serves the stand-in during a run, unless there is a key for a real model."""


async def serve_forever(port: int = 8123) -> None:
    """Serve the stand-in until Ctrl-C, for agents in other processes."""
    async with serve(answer, port=port) as url:
        print(f"PLAYED model; for the agents: export OPENAI_API_KEY=local OPENAI_BASE_URL={url}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve_forever(*map(int, sys.argv[1:])))
