"""Runs a program for as long as its starter lives, and not a moment longer.

    python -m lightning_verl.vllm.guard GRACE_SECONDS COMMAND ...

Standard input is the thread it hangs by: when it is closed, which the system does however its other end has died, the
program and all that it has started are ended. Standard library only, so that it starts at once.
"""

import os
import select
import signal
import subprocess
import sys
import time

_LOOK_SECONDS = 0.2
_DEATH_SECONDS = 2.0
"""How long the system may take to forget those that were killed."""


def main(command: list[str], *, grace_seconds: float) -> int:
    """Run a program; return its exit status, as a shell has it.

    Args:
        command: The program and its arguments.
        grace_seconds: How long it may take to end by itself, before it is killed.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the other end of the pipe says when it is over
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_default_signals)
    try:
        while program.poll() is None:
            readable, _, _ = select.select([sys.stdin], [], [], _LOOK_SECONDS)
            if readable and not os.read(sys.stdin.fileno(), 1):
                break
    finally:
        _end(program, grace_seconds)
    return program.returncode if program.returncode >= 0 else 128 - program.returncode


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _end(program: "subprocess.Popen[bytes]", grace_seconds: float) -> None:
    """End the whole session of the program: first by asking."""
    deadline = time.monotonic() + grace_seconds
    _signal(program.pid, signal.SIGTERM)
    while time.monotonic() < deadline and (program.poll() is None or _signal(program.pid, 0)):
        time.sleep(0.05)
    _signal(program.pid, signal.SIGKILL)
    program.wait()
    deadline = time.monotonic() + _DEATH_SECONDS
    while time.monotonic() < deadline and _signal(program.pid, 0):
        time.sleep(0.01)


def _signal(group: int, number: int) -> bool:
    """Send a signal to a process group; return whether it has any process."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:], grace_seconds=float(sys.argv[1])))
