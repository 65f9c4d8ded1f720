"""Runs pages, and the `agl` and the scripts of their blocks, in forks of one process that has imported what they need.

Most of them do less than their imports. `python warm.py SOCKET` serves; `warm_client.py` asks it.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

GROUPS = ("adapters", "algorithms", "backends", "commands", "proxies", "runners", "stores", "strategies")
BESIDES = (
    *("aiohttp.web", "fastapi", "httpx", "openai.resources.chat", "opentelemetry.instrumentation.threading", "uvicorn"),
    *("lightning_core.cli.job", "lightning_core.tracer.otel", "lightning_core.trainer", "lightning_http"),
    *("lightning_viewer.report", "reasoning_gym"),
)


@contextmanager
def served(folder: Path) -> Iterator[dict[str, str]]:
    """Serve; give the variables by which programs use it. What was begun in the block ends with it.

    On other systems than Linux, where forks of a process that has imported much are not safe, each program begins anew.
    """
    if sys.platform != "linux":
        yield {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        return
    place, tools = folder / "socket", folder / "tools"
    tools.mkdir()
    agl = tools / "agl"
    agl.write_text(
        f"#!{sys.executable} -IS\nimport sys\nsys.path.append({str(Path(__file__).parent)!r})\n"
        "from warm_client import ask\nsys.exit(ask('agl', sys.argv[1:]))\n"
    )
    agl.chmod(0o755)
    server = subprocess.Popen([sys.executable, __file__, place], start_new_session=True)
    try:
        while not place.exists():
            assert server.poll() is None
            time.sleep(0.02)
        yield {"PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}", "WARM_SOCKET": str(place)}
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def serve(place: str) -> dict[str, Any]:
    """Serve for good; return in each fork, with what it is to do."""
    for group in GROUPS:
        for point in entry_points(group=f"lightning_core.{group}"):
            point.load()
    for module in BESIDES:
        importlib.import_module(module)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks that have ended are forgotten
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{place}.new")
        listening.listen(64)
        os.rename(f"{place}.new", place)
        while True:
            connection, _ = listening.accept()
            if os.fork():
                connection.close()
                continue
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listening.close()
            return _begin(connection)


def _begin(connection: socket.socket) -> dict[str, Any]:
    """Fork once more: into what is to be done, and what says how that has ended."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    asked: dict[str, Any] = json.loads(connection.makefile("rb").readline())
    if worker := os.fork():
        for stream in streams:
            os.close(stream)
        ended = os.pidfd_open(worker)
        if ended not in select.select([ended, connection], [], [])[0]:  # whoever asked was killed
            os.kill(worker, signal.SIGTERM)
        _, status = os.waitpid(worker, 0)
        with suppress(BrokenPipeError):
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    connection.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # Those that the process began with were opened for other files.
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.path.pop(0)  # this file's folder
    return asked


def work(program: str, arguments: list[str]) -> int | str | None:
    """Do what a program would do; return its exit status."""
    sys.argv = [program, *arguments]
    if program == "agl":
        from lightning_core.cli import main

        return main()
    warnings.simplefilter("error")
    path = Path(arguments[0]).resolve()
    main_module = types.ModuleType("__main__")
    main_module.__file__ = str(path)
    sys.modules["__main__"] = main_module
    sys.argv = arguments
    sys.path.insert(0, str(path.parent))
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), vars(main_module))
    return 0


if __name__ == "__main__":
    task = serve(sys.argv[1])
    sys.exit(work(task["program"], task["arguments"]))
