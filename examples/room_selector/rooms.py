"""Meeting rooms, their bookings, and tasks: a few of them by hand, the others drawn by lot, all with the right room."""

import random
from dataclasses import asdict, dataclass
from typing import TypedDict


@dataclass(frozen=True)
class Room:
    """A meeting room."""

    id: str
    capacity: int
    equipment: tuple[str, ...]
    accessible: bool
    distance_m: int
    booked: tuple[tuple[str, int, int], ...] = ()
    """Date, and from when to when in minutes of the day."""

    def is_free(self, date: str, start: int, minutes: int) -> bool:
        """Whether nobody has booked any of the time."""
        return not any(day == date and start < end and begin < start + minutes for day, begin, end in self.booked)


ROOMS = (
    Room("Lyra", 4, ("whiteboard",), True, 10, (("2025-10-13", 600, 660),)),
    Room("Vega", 4, ("screen",), False, 25),
    Room("Nova", 6, ("whiteboard", "screen"), True, 45, (("2025-10-13", 540, 720), ("2025-10-14", 840, 900))),
    Room("Orion", 8, ("screen",), True, 60, (("2025-10-14", 600, 660),)),
    Room("Draco", 8, ("whiteboard", "screen", "confphone"), False, 80),
    Room("Atlas", 14, ("whiteboard", "screen", "confphone"), True, 110),
)
DATES = ("2025-10-13", "2025-10-14", "2025-10-15")
EQUIPMENT = ("whiteboard", "screen", "confphone")


class Task(TypedDict):
    """One request for a room."""

    date: str
    time: str
    minutes: int
    people: int
    needs: list[str]
    accessible: bool
    expected: str
    """The id of the right room."""


def describe(task: Task) -> str:
    """Return the request in words."""
    needs = f" They need: {', '.join(task['needs'])}." if task["needs"] else ""
    access = " It has to be accessible by wheelchair." if task["accessible"] else ""
    when = f"on {task['date']} at {task['time']} for {task['minutes']} minutes"
    return f"Find a room for {task['people']} people {when}.{needs}{access}"


def look_up(date: str, time: str, minutes: int) -> list[dict[str, object]]:
    """Return all rooms, and whether each is free then. This is the tool of the agent."""
    start = _in_minutes(time)
    return [
        {**{name: value for name, value in asdict(room).items() if name != "booked"}, "free": free}
        for room in ROOMS
        for free in [room.is_free(date, start, minutes)]
    ]


def choose(task: Task) -> str | None:
    """Return the smallest room that fits, the nearest of several; None when there is none."""
    fitting = [
        room
        for room in ROOMS
        if room.is_free(task["date"], _in_minutes(task["time"]), task["minutes"])
        and room.capacity >= task["people"]
        and set(task["needs"]) <= set(room.equipment)
        and (room.accessible or not task["accessible"])
    ]
    return min(fitting, key=lambda room: (room.capacity, room.distance_m)).id if fitting else None


def make_tasks(count: int, seed: int) -> list[Task]:
    """Draw tasks that a room fits."""
    lot, tasks = random.Random(seed), list[Task]()
    while len(tasks) < count:
        task: Task = {
            "date": lot.choice(DATES),
            "time": f"{lot.randint(9, 16):02}:{lot.choice(('00', '30'))}",
            "minutes": lot.choice((30, 60, 90)),
            "people": lot.randint(2, 9),
            "needs": sorted(lot.sample(EQUIPMENT, lot.randint(0, 2))),
            "accessible": lot.random() < 0.3,
            "expected": "",
        }
        room = choose(task)
        if room is not None:
            tasks.append({**task, "expected": room})
    return tasks


def train() -> list[Task]:
    """Return the tasks to learn from."""
    return make_tasks(16, seed=1)


def val() -> list[Task]:
    """Return the tasks to choose prompts by."""
    return make_tasks(40, seed=2)


def test() -> list[Task]:
    """Return the tasks to measure the result on."""
    return make_tasks(60, seed=3)


def _in_minutes(time: str) -> int:
    hours, minutes = time.split(":")
    return 60 * int(hours) + int(minutes)
