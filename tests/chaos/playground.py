"""Processes of one folder: started, watched by what they write down, killed, and found wherever they are left."""

import json
import os
import random
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

PATIENCE_SECONDS = 60.0
"""How long nothing may happen before it is said that nothing will."""

END_SECONDS = 60.0
"""How long processes may take to end of which nobody is left to wait for."""

Program = subprocess.Popen[bytes]

_MARK = "CHAOS_MARK"


class Playground:
    """A folder in which processes work, and write a journal.

    Args:
        folder: The folder, which is there.
        chance: Where random choices come from.
    """

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder = folder
        self.chance = chance
        self.journal = folder / "journal"
        self.journal.mkdir()
        self.dead: set[int] = set()
        """Which processes were killed, or died with one that was."""
        self._mark = secrets.token_hex(8)
        self._started: list[Program] = []
        self._read: dict[Path, int] = {}
        self._entries: list[dict[str, Any]] = []

    def agl(self, *arguments: object) -> Program:
        """Start a command of `agl`; what it prints goes to a log of its own."""
        return self.start(sys.executable, "-m", "lightning_core", *arguments)

    def start(self, *command: object) -> Program:
        """Start a program in the folder."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AGL_")}
        with self._log(len(self._started)).open("wb") as log:
            process = subprocess.Popen(
                [str(part) for part in command],
                cwd=self.folder,
                env={**environment, _MARK: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def log(self, process: Program) -> str:
        """Return what a process has printed."""
        return self._log(self._started.index(process)).read_text(errors="replace")

    def served_runs(self) -> list[str]:
        """Return which run each `agl serve store` said that it serves, in the order of their starts."""
        logs = [self.log(process) for process in self._started]
        return [found[1] for log in logs if (found := re.match(r"store of run (\S+) at ", log))]

    def _log(self, number: int) -> Path:
        return self.folder / f"log-{number}.txt"

    def show_logs(self) -> None:
        """Print what all processes have printed, for a test that fails."""
        for number, process in enumerate(self._started):
            arguments = process.args[2:] if isinstance(process.args, list) else process.args
            print(f"--- {arguments!r} (process {process.pid}, exit status {process.poll()})")
            print(self._log(number).read_text(errors="replace")[-3_000:])

    # What is written down

    def entries(self, what: str) -> list[dict[str, Any]]:
        """Return what the processes have written down so far of one kind."""
        for path in sorted(self.journal.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                lines = file.read().splitlines(keepends=True)
            whole = [line for line in lines if line.endswith(b"\n")]
            self._read[path] = self._read.get(path, 0) + sum(map(len, whole))
            self._entries += map(json.loads, whole)
        return [entry for entry in self._entries if entry["what"] == what]

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait, as long as the journal grows or something else still happens.

        Raises:
            TimeoutError: When nothing did for long.
        """
        size, deadline = -1, 0.0
        while not is_so():
            self.entries("")
            if len(self._entries) != size:
                size, deadline = len(self._entries), time.monotonic() + PATIENCE_SECONDS
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} did not come about, and for {PATIENCE_SECONDS:g} s nothing did")
            time.sleep(0.03)

    def wait_for_reports(self, count: int, *, unless_ended: Program) -> bool:
        """Wait until so many attempts are reported on, and then for a random moment.

        Returns:
            Whether there are so many; False when a program has ended before.
        """
        self.wait_until(
            lambda: len(self.entries("reported")) >= count or unless_ended.poll() is not None, f"report {count}"
        )
        time.sleep(self.chance.uniform(0.0, 0.1))
        return unless_ended.poll() is None

    def wait_for(self, program: Program) -> int:
        """Return how a program ended."""
        self.wait_until(lambda: program.poll() is not None, f"the end of {program.args!r}")
        return int(program.returncode)

    # Killing

    def kill(self, process: Program | psutil.Process) -> None:
        """End a process as `kill -9` does, whatever it does just now; its runner processes, if any, die with it."""
        process.send_signal(signal.SIGSTOP)  # it starts nothing more
        self.dead |= {process.pid, *(runner.pid for runner in self.runners_of(process))}
        process.send_signal(signal.SIGKILL)
        process.wait()

    def kill_one(self, processes: Sequence[psutil.Process]) -> None:
        """Kill one of some processes, if there are any just now."""
        if processes:
            self.kill(self.chance.choice(processes))

    def runners_of(self, process: Program | psutil.Process) -> list[psutil.Process]:
        """Return the runner processes that a process has started, those that have just begun too."""
        try:
            servers = [
                each for each in psutil.Process(process.pid).children() if "forkserver" in str(_command_of(each))
            ]
            return [runner for each in servers for runner in each.children()]
        except psutil.NoSuchProcess:
            return []

    def running(self) -> list[psutil.Process]:
        """Return all processes that come from here, orphans too."""
        return list(self._running())

    def _running(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            try:
                marked = process.environ().get(_MARK) == self._mark
                if marked and process.status() != psutil.STATUS_ZOMBIE:
                    yield process
            except (psutil.NoSuchProcess, psutil.AccessDenied):  # it ended just now, or is somebody else's
                continue

    def nothing_left(self) -> list[str]:
        """Return the commands of what still runs after the time that everything has to end."""
        deadline = time.monotonic() + END_SECONDS
        while (left := self.running()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return [" ".join(_command_of(process)) for process in left]

    def kill_all(self) -> None:
        """Kill everything that still runs."""
        for process in self.running():
            process.kill()
        for started in self._started:
            started.wait()


def free_port() -> int:
    """Return a port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_served(port: int) -> bool:
    """Whether anybody listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
