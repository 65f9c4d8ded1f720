"""Asks the process of `warm.py` to run a program. It imports little: it is what begins in place of the program."""

import json
import os
import socket


def ask(program: str, arguments: list[str]) -> int:
    """Run a program with this process's streams, folder and environment; return its exit status.

    Args:
        program: `agl`, or `python` for the script that is its first argument.
        arguments: Its arguments.
    """
    asked = {"program": program, "arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["WARM_SOCKET"])
        socket.send_fds(connection, [b"f"], [0, 1, 2])
        connection.sendall(json.dumps(asked).encode() + b"\n")
        status = connection.makefile().readline()
    return int(status or 1)


if __name__ == "__main__":
    import sys

    sys.exit(ask("python", sys.argv[1:]))
