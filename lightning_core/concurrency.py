"""Event loops of our own threads, and the guard of programs."""

import asyncio
import subprocess
from collections.abc import Callable
from contextlib import suppress


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the fastest event loop there is for this platform; None for asyncio's own."""
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


_SCRIPT = 'trap "" HUP INT QUIT TERM; read -r group || exit 0; read -r released || kill -s KILL -- "-$group"'
"""Reads the group, then waits for a second line. Where the pipe ends without one, nobody is left who could write it."""


class Guard:
    """A small shell that outlives this process for a moment.

    The system closes the pipe between the two when this process ends, even by SIGKILL, and the shell then kills the
    group. It cannot help where it is killed itself, or where a forked copy of this process holds the pipe open.

    Raises:
        OSError: When no process can be started.
    """

    def __init__(self) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",
            env={},
            start_new_session=True,  # Ctrl-C is for this process, which then takes care of its programs
        )

    def protect(self, group: int) -> None:
        """Kill this group from now on, when this process ends.

        Raises:
            OSError: When the shell is gone.
        """
        assert self._shell.stdin is not None
        self._shell.stdin.write(b"%d\n" % group)

    def release(self) -> None:
        """End without killing anything.

        To be called before the group's leader is reaped: then its id may be another's.
        """
        assert self._shell.stdin is not None
        with suppress(BrokenPipeError):  # the shell was killed
            self._shell.stdin.write(b"\n")
        self._shell.stdin.close()
        self._shell.wait()
