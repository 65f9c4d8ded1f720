"""Scripts as users of agentlightning 0.3 write them: only their import says `lightning_core`.

With the environment variable `AGENTLIGHTNING_PYTHON` (the Python of an environment with agentlightning 0.3.0), each of
them is run there too, with its former import, and has to say the same.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).with_name("scripts")
IMPORT = "import lightning_core as agl"
FORMER_IMPORT = "import agentlightning as agl"

OUTCOMES = {
    "algorithm_class": ["[[[1, 2], [3, 4], null], [[1, 2, 3], [7], 0.25], [[1, 2], [5], null], [[1, 2, 3], [7], 1.0]]"],
    "class_agent": [
        '{"moments": ["start 5", "trace train", "end 5", "start 6", "trace train", "end 6", "start 9", "trace val", '
        '"end 9"], "rewards": {"5": 1.0, "6": 0.0, "9": 0.6}, "watched": 3}'
    ],
    "custom_adapter": [
        '{"called": true, "curve": [["at 1", 0.1], ["at 5", 0.5], ["at 3", 0.3]]}',
        '[[{"content": "Hello?", "role": "user"}, {"content": "Hi!", "role": "assistant"}]]',
    ],
    "emitters": [
        '{"exception": ["KeyError", "\'no index\'"], "final": 0.75, "is below": true, "message": "searching tea", '
        '"names": ["agentlightning.annotation", "agentlightning.exception", "agentlightning.message", '
        '"agentlightning.object", "agentlightning.operation"], "object": [{"hits": ["TEA"]}], "operation": "search", '
        '"rewards": [[["quality", 0.75], ["speed", 0.5]]]}'
    ],
    "fast_algorithm": ['{"a": 0.5, "four": 2.0}', '"dev takes fast algorithms only"'],
    "llm_agent": [
        '[["succeeded", [{"answer": "two one", "mode": "val"}], 1.0], '
        '["succeeded", [{"answer": "up", "mode": "val"}], 0.0]]'
    ],
    "manual_queue": [
        '{"attempts": [["succeeded"], ["failed", "succeeded"], ["succeeded"]], "by hand": "succeeded", '
        '"ended": [[1, "succeeded"], [2, "succeeded"], [3, "succeeded"], [4, "failed"]], '
        '"failed": [[4, "no retry"]], "nothing left": true, "page": [3, 2], "rewards": [0.1, 0.2, 0.3]}'
    ],
    "prompt_search": [
        '{"best": "Please greet {name} warmly", "scores": {"Dear {name}": 0.25, "Hi {name}": 0.0, '
        '"Please greet {name} warmly": 1.0, "Say {name}": 0.0}}',
        '{"engine": "f-string", "resource_type": "prompt_template", "template": "Please greet {name} warmly"}',
    ],
}


def run(python: str, script: Path) -> list[str]:
    """Return what a script printed; it has to come to its end by itself."""
    done = subprocess.run(
        [python, script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_there_is_an_outcome_for_each_script():
    assert sorted(OUTCOMES) == sorted(script.stem for script in SCRIPTS.glob("*.py"))


@pytest.mark.parametrize("name", OUTCOMES)
def test_only_the_import_of_a_script_knows_us(name: str):
    text = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
    assert text.count("lightning_core") == 1
    assert f"\n{IMPORT}\n" in text


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_script_of_0_3_runs_with_its_import_changed(name: str):
    assert run(sys.executable, SCRIPTS / f"{name}.py") == OUTCOMES[name]


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_script_says_the_same_with_agentlightning_0_3(name: str, tmp_path: Path):
    python = os.environ.get("AGENTLIGHTNING_PYTHON")
    if not python:
        pytest.skip("AGENTLIGHTNING_PYTHON does not name a Python with agentlightning 0.3.0")
    script = tmp_path / f"{name}.py"
    script.write_text((SCRIPTS / script.name).read_text(encoding="utf-8").replace(IMPORT, FORMER_IMPORT))
    assert run(python, script)[-len(OUTCOMES[name]) :] == OUTCOMES[name]  # its logs go to the same place
