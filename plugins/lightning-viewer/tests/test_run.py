"""`agl run`: one task, its trace, and what the exit status says."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lightning_core.cli import agl

AGENT = """
from lightning_core import emit_message, rollout

@rollout
async def solve(task):
    emit_message("working")
    if task == "fail":
        raise ValueError("no price for [b]tea[/b]")
    return None if task == "nothing" else 0.5

@rollout
def obey(task, prompt_template):
    print("of the agent")
    emit_message(prompt_template.format(**task))
    return {"polite": "please" in prompt_template.template, "length": 3}

def plain(task):
    return 1

class Clumsy:
    def lightning_rollout_end(self):
        raise ZeroDivisionError("hook")
"""
CONFIG = """
agent: run_agent:obey
algorithm: not_even_installed
train_dataset: not_there.jsonl
hooks: ["run_agent:Clumsy"]
initial_resources:
  greeting: {resource_type: prompt_template, template: "Hello {name}"}
"""

Run = Callable[..., Result]


@pytest.fixture
def folder(own_folder: Path) -> Path:
    """The current folder, with the module above."""
    (own_folder / "run_agent.py").write_text(AGENT)
    (own_folder / "config.yaml").write_text(CONFIG)
    return own_folder


@pytest.fixture
def run(folder: Path) -> Run:
    """Run `agl run`."""
    return lambda *arguments, **options: CliRunner().invoke(agl, ["run", *arguments], **options)


@pytest.mark.parametrize("agent", ["run_agent:solve", "run_agent.py:solve"])
def test_task_is_run_and_its_trace_is_printed(run: Run, agent: str) -> None:
    result = run(agent, "--task", '{"question": "1 + 1?"}')
    assert result.exit_code == 0
    *trace, last = result.stdout.splitlines()
    assert trace == [f'{agent}  {{"question": "1 + 1?"}}', "  message  working", "  reward 0.5"]
    assert last.startswith("succeeded in ")
    assert last.endswith(", reward 0.5")


def test_agent_of_another_folder_is_found_by_its_file(
    run: Run, folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert run(f"{folder}/run_agent.py:solve", "--task", "1").exit_code == 0


def test_agent_that_fails_is_1_with_the_cause(run: Run) -> None:
    result = run("run_agent:solve", "--task", "fail")
    assert result.exit_code == 1
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert lines[2] == "ValueError: no price for [b]tea[/b]"
    assert lines[3].endswith("run_agent.py:8 in solve")
    assert lines[4].startswith("failed in ")
    assert lines[4].endswith(": ValueError: no price for [b]tea[/b]")


def test_an_error_is_placed_at_the_agents_line_where_the_framework_raised_it(run: Run) -> None:
    result = run("run_agent:obey", "--task", '{"name": "Ada", "unused": 1}', "--prompt", "Greet {nmae}")
    lines = [line.strip() for line in result.stdout.splitlines()]
    at = lines.index(
        "ValueError: no value for placeholder 'nmae'; the template has ['nmae'], the values are ['name', 'unused']"
    )
    assert lines[at + 1].endswith("run_agent.py:14 in obey")


def test_a_resource_that_is_missing_is_told_with_the_options_that_give_one(run: Run) -> None:
    result = run("run_agent:obey", "--task", "{}")
    assert result.exit_code == 1
    assert "obey needs a resource of type PromptTemplate, but has: none" in result.stdout
    assert result.stderr == "Give the agent a prompt with --prompt, or all that it needs with a --config.\n"


def test_agent_that_gives_no_reward_has_done_its_task(run: Run) -> None:
    result = run("run_agent:solve", "--task", "nothing")
    assert result.exit_code == 0
    assert result.stdout.endswith(": the agent gave no reward: return a number, or call emit_reward\n")


def test_prompt_and_task_may_be_files(run: Run, folder: Path) -> None:
    (folder / "prompt.txt").write_text("please, {name}")
    (folder / "task.json").write_text('{"name": "Ada"}')
    result = run("run_agent:obey", "--task", "@task.json", "--prompt", "@prompt.txt")
    assert result.exit_code == 0
    assert "  message  please, Ada\n" in result.stdout
    assert "  reward polite 1, length 3\n" in result.stdout


def test_task_may_come_from_stdin(run: Run) -> None:
    result = run("run_agent:obey", "--task", "@-", "--prompt", "{name}", input='{"name": "Ada"}')
    assert "  message  Ada\n" in result.stdout


def test_config_gives_all_but_its_algorithm_and_its_datasets(run: Run) -> None:
    result = run("--config", "config.yaml", "--task", '{"name": "Ada"}')
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1] == 'run_agent:obey  {"name": "Ada"}'
    assert "  message  Hello Ada\n" in result.stdout
    assert result.stdout.endswith("plugin 'Clumsy' failed 1x in lightning_rollout_end: ZeroDivisionError: hook\n")


def test_programs_get_one_line_of_json_and_nothing_else(run: Run) -> None:
    result = run("run_agent:obey", "--task", '{"name": "Ada"}', "--prompt", "please, {name}", "--json")
    assert result.exit_code == 0
    assert result.stderr == "of the agent\n"
    (line,) = result.stdout.splitlines()
    record = json.loads(line)
    assert {name: record[name] for name in ("event", "attempt", "task", "mode", "status", "reward", "failure")} == {
        "event": "rollout",
        "attempt": 1,
        "task": {"name": "Ada"},
        "mode": "train",
        "status": "succeeded",
        "reward": 1.0,
        "failure": None,
    }
    assert record["duration_seconds"] > 0
    assert [span["name"] for span in record["spans"]] == ["agentlightning.message", "agentlightning.annotation"]
    assert record["spans"][0]["attributes"]["agentlightning.message.body"] == "please, Ada"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run_agent:slove", "--task", "1"], "module 'run_agent' has no 'slove'"),
        (["no_such_agent:solve", "--task", "1"], "no module 'no_such_agent'"),
        (
            ["run_agent.py", "--task", "1"],
            "'run_agent.py' is a file; name what is in it, too, as in 'run_agent.py:",
        ),
        (["nowhere.py:solve", "--task", "1"], "'nowhere.py:solve': there is no file"),
        (["run_agent:plain", "--task", "1"], "'run_agent:plain' is of type function; decorate the function"),
        (["run_agent:solve", "--task", '{"a": 1'], "--task is not valid JSON: Expecting ',' delimiter, at line 1"),
        (["run_agent:solve", "--task", "@nope.json"], "--task: cannot read nope.json: No such file or directory"),
        (["run_agent:obey", "--task", "1", "--prompt", "{"], "--prompt: malformed f-string template"),
        (["run_agent:obey", "--task", "1", "--resources", "{}"], "No such option"),
        (["--config", "nope.yaml", "--task", "1"], "cannot read config file nope.yaml"),
        (["--task", "1"], "Missing argument 'AGENT': name one, or a --config that does"),
        (["run_agent:solve"], "Missing option '--task'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(run: Run, arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_module_that_cannot_be_imported_is_told_with_its_line(run: Run, folder: Path) -> None:
    (folder / "broken_agent.py").write_text("\n1 / 0\n")
    result = run("broken_agent.py:solve", "--task", "1")
    assert result.exit_code == 2
    assert result.stderr.endswith(f"ZeroDivisionError: division by zero ({folder}/broken_agent.py:2)\n")
