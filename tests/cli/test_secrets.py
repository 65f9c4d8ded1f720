"""What commands write has no secrets: neither those of the config and of resources, nor what looks like a key."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lightning_core.cli import agl

SECRETS = {
    "the model's key": "tidal-wharf-91",
    "a header of the model's": "copper-lantern-77",
    "a variable": "orchid-ladder-53",
    "a variable that the config names": "marble-canoe-28",
    "of OpenAI": "sk-proj-a1b2c3d4e5f6g7h8i9j0",
    "of Google": "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    "of AWS": "AKIAIOSFODNN7EXAMPLE",
    "of GitHub": "ghp_1234567890abcdefghijklmnopqrstuvwxyz",
    "a JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w",
}

AGENT = f"""
from lightning_core import emit_message, rollout

@rollout
async def ask(task, llm):
    header = llm.sampling_parameters["extra_headers"]["x-team"]
    emit_message(f"asking with {{llm.api_key}}")
    raise RuntimeError(f"401: wrong: {{llm.api_key}}, {{header}}, {" ".join(SECRETS.values())}")

class Listener:
    def lightning_rollout_end(self):
        raise RuntimeError("orchid-ladder-53 is wrong")
"""

CONFIG = """
agent: pier_agent:ask
algorithm: baseline
store: memory
train_dataset: [{question: one}]
hooks: [pier_agent:Listener]
initial_resources:
  main_llm:
    resource_type: llm
    endpoint: http://127.0.0.1:9/v1
    model: small
    api_key: tidal-wharf-91
    sampling_parameters:
      extra_headers: {x-team: copper-lantern-77, content-type: application/json}
"""


@pytest.fixture
def config(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (own_folder / "pier_agent.py").write_text(AGENT)
    path = own_folder / "config.yaml"
    path.write_text(CONFIG)
    monkeypatch.setenv("WAREHOUSE_TOKEN", SECRETS["a variable"])
    monkeypatch.setenv("MARBLE", SECRETS["a variable that the config names"])
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(agl, [str(each) for each in arguments])


def found_in(text: str) -> list[str]:
    return [what for what, secret in SECRETS.items() if secret in text]


@pytest.mark.parametrize("option", [[], ["--json"]], ids=["for people", "for programs"])
def test_training_tells_no_secrets(config: Path, runs_dir: Path, option: list[str]) -> None:
    result_file = config.with_name("result.json")
    model_list = (
        "llm_proxy={model_list: [{model_name: large, litellm_params: "
        "{model: openai/large, api_base: 'http://127.0.0.1:9/v1', api_key: os.environ/MARBLE}}]}"
    )
    ran = run("train", config, *option, "-o", result_file, "--set", model_list)

    assert ran.exit_code in (0, 1), ran.output
    assert "wrong: ***" in ran.output
    (folder,) = runs_dir.iterdir()
    written = {path.name: path.read_text() for path in folder.iterdir() if not path.name.startswith("store.db")}
    assert "wrong: ***" in written["manifest.json"]
    written |= {"output": ran.output, "result.json": result_file.read_text()}
    assert {name: found_in(text) for name, text in written.items() if found_in(text)} == {}


@pytest.mark.parametrize("option", [[], ["--json"]], ids=["for people", "for programs"])
def test_one_task_tells_no_secrets(config: Path, option: list[str]) -> None:
    ran = run("run", "--config", config, "--task", "one", *option)

    assert ran.exit_code == 1
    assert "asking with ***" in ran.output
    assert [what for what in found_in(ran.output) if "config names" not in what] == []


def test_best_resources_are_shown_without_their_headers(config: Path) -> None:
    config.with_name("pier_agent.py").write_text(
        "from lightning_core import rollout\n@rollout\ndef ask(task, llm):\n    return 1.0\n"
        "class Listener:\n    def lightning_rollout_end(self):\n        pass\n"
    )
    result_file = config.with_name("result.json")
    assert run("train", config, "-o", result_file).exit_code == 0
    best: dict[str, Any] = json.loads(result_file.read_text())["best_resources"]
    assert "api_key" not in best["main_llm"]
    assert best["main_llm"]["sampling_parameters"]["extra_headers"]["x-team"] == "***"


def test_error_of_a_command_tells_no_secrets(config: Path) -> None:
    ran = run("train", config, "--set", f"algorithm={SECRETS['of GitHub']}")
    assert ran.exit_code == 2
    assert found_in(ran.output) == []


PROMPT = "You need a basic understanding of calendars, see sk-learn-pipelines-20. Never say tidal-wharf-91."
SHOWN = PROMPT.replace("tidal-wharf-91", "***")


@pytest.mark.parametrize("option", [[], ["--json"]], ids=["for people", "for programs"])
def test_prompts_are_hidden_only_where_they_have_a_secret_of_the_config(
    config: Path, monkeypatch: pytest.MonkeyPatch, runs_dir: Path, option: list[str]
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "calendars")
    monkeypatch.setenv("CACHE_PASSWORD", "sk-learn-pipelines-20")
    config.write_text(CONFIG + f"  auth: {{resource_type: prompt_template, template: '{PROMPT}'}}\n")
    config.with_name("pier_agent.py").write_text(
        "from lightning_core import rollout\n@rollout\ndef ask(task, resources):\n    return 1.0\n"
        "class Listener:\n    def lightning_rollout_end(self):\n        pass\n"
    )
    result_file = config.with_name("result.json")
    ran = run("train", config, "-o", result_file, *option)

    assert ran.exit_code == 0, ran.output
    assert SHOWN in ran.stdout
    assert json.loads(result_file.read_text())["best_resources"]["auth"]["template"] == SHOWN
    (folder,) = runs_dir.iterdir()
    kept = json.loads((folder / "manifest.json").read_text())["origin"]["config"]["initial_resources"]
    assert kept["auth"]["template"] == SHOWN
    assert SHOWN in run("show", folder.name).stdout


@pytest.mark.skipif(os.name != "posix", reason="files have modes there")
def test_folder_of_a_run_is_its_owners_alone(config: Path, runs_dir: Path) -> None:
    config.write_text(CONFIG.replace("store: memory\n", ""))
    command = [sys.executable, "-m", "lightning_core", "train", config]
    subprocess.run(command, umask=0, capture_output=True, timeout=200, check=False)
    (folder,) = runs_dir.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in folder.iterdir()} == {
        path.name: "0o600" for path in folder.iterdir()
    }
