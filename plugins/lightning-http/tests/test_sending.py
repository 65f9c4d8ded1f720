import sys
import types
import weakref
from pathlib import Path
from typing import Any

import pytest
from lightning_http.sending import packed, unpacked

from lightning_core.errors import ExecutionError

pytestmark = pytest.mark.usefixtures("process_agents")


def again(value: object) -> Any:
    return unpacked(packed("it", value))


def test_weak_references_lead_nowhere(agents: Any):
    agent = agents.Adding(7)
    agent.other = weakref.ref(agents.locked)
    assert again(agent).other is None


def test_part_that_is_refused_is_named_once():
    class Whole:
        def __reduce__(self) -> Any:
            return str, (packed("the part", lambda: 1),)

    with pytest.raises(ExecutionError, match=r"^the part cannot be sent"):
        packed("the whole", Whole())


def test_what_a_notebook_defines_is_refused(monkeypatch: pytest.MonkeyPatch):
    notebook = types.ModuleType("__main__")
    exec("def solve(task): ...\nclass Agent: ...\nagent = Agent()", notebook.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    for value in (notebook.solve, notebook.agent):
        with pytest.raises(ExecutionError, match=r"is defined in a notebook, or in a program that is not a file"):
            packed("agent", value)


def test_what_only_the_run_program_defines_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    source = "def fine(task): ...\nif __name__ == '__main__':\n    def solve(task): ...\n"
    (tmp_path / "program.py").write_text(source)
    program = types.ModuleType("__main__")
    program.__file__ = str(tmp_path / "program.py")
    exec(source, program.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", program)
    sent = [packed("agent", each) for each in (program.fine, program.solve)]
    del program.solve  # the other process imports the program, and does not run what stands below the guard
    assert unpacked(sent[0]) is program.fine
    with pytest.raises(
        ExecutionError, match=r"'solve'.* below `if __name__ == '__main__':` is not there .*; define it"
    ):
        unpacked(sent[1])
