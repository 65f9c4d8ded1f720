"""What the tests of all packages share."""

import asyncio
import gc
import importlib
import os
import ssl
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def forgotten_clients() -> Iterator[None]:
    """A run warns of the clients in its process that nothing records: those of one test are not the next one's."""
    yield
    sys.modules.pop("google.genai", None)


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder of the test's own; what is imported from it is forgotten, and so is its place in the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    importlib.invalidate_caches()
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in str(getattr(module, "__file__", "")):
            del sys.modules[name]


@pytest.fixture
async def nothing_left_running() -> AsyncIterator[None]:
    """Fail a test that leaves a task or a thread behind."""
    before = set(threading.enumerate())
    yield
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    assert not tasks
    for thread in set(threading.enumerate()) - before:
        if not thread.name.startswith("asyncio_"):  # of the loop's own executor, which ends with the loop
            thread.join(timeout=20)
            assert not thread.is_alive(), f"{thread.name} still runs"


PROCESSES = (
    "tests/algorithm/test_evaluation.py",
    "tests/chaos/",
    "tests/cli/",
    "tests/compat/test_earlier_files.py",
    "tests/compat/test_scripts.py",
    "tests/config/test_agents.py",
    "tests/docs/test_code_blocks.py",
    "tests/docs/test_own_parts.py",
    "tests/docs/test_suite_examples.py",
    "tests/docs/test_troubleshoot.py",
    "tests/runs/test_changes.py",
    "tests/runs/test_lock.py",
    "tests/store/test_planted_faults.py",
    "tests/store/test_suite.py",
    "tests/test_installation.py",
    "tests/test_template.py",
    "tests/tracer/test_base.py",
    "tests/tracer/test_global_provider.py",
    "tests/trainer/test_budget.py",
    "tests/trainer/test_budget_elsewhere.py",
    "tests/trainer/test_judges.py",
    "tests/trainer/test_llm_proxy.py",
    "tests/trainer/test_progress.py",
    "tests/trainer/test_run_dir.py",
    "tests/trainer/test_signals.py",
)
"""The core's tests that start other processes, which `make test-fast` leaves out."""

_started: list[str] = []


def _note_process(event: str, args: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen" and "uname" not in str(args[1]):  # which `platform` asks, once a process
        _started.append(str(args[1]))


sys.addaudithook(_note_process)


LONGEST = "plugins/lightning-verl/tests/e2e/test_trainings.py"
"""Begins first, so that two processes end together."""


def pytest_configure(config: pytest.Config) -> None:
    """Have clients load one certificate, not all, which takes each of thousands 20 ms: tests ask this machine only."""
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    if certificates and not hasattr(config, "workerinput"):
        until_end = ExitStack()
        config.add_cleanup(until_end.close)
        file = Path(until_end.enter_context(tempfile.TemporaryDirectory()), "one.pem")
        file.write_text(ssl.DER_cert_to_PEM_cert(certificates[0]))
        os.environ["SSL_CERT_FILE"] = str(file)


gc.disable()  # until thousands of tests, and all that they import, are there for good


def pytest_collection_finish() -> None:
    """Leave what was collected out of each later garbage collection, which would take most of a second."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the core's tests that start other processes."""
    items.sort(key=lambda item: item.path != config.rootpath / LONGEST)
    for item in items:
        if item.path.relative_to(config.rootpath).as_posix().startswith(PROCESSES):
            item.add_marker("processes")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """With `make test-fast`, fail a test that starts a process and is not in the list."""
    _started.clear()
    yield
    if "not processes" not in item.config.option.markexpr:
        return
    is_of_the_core = item.path.is_relative_to(item.config.rootpath / "tests")
    if _started and is_of_the_core and item.get_closest_marker("processes") is None:
        pytest.fail(f"it started {_started[0]}; name its file in PROCESSES of the root conftest.py")
