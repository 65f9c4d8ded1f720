"""The agent of a config file: a path, a program or a service."""

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
from lightning_agents import CommandAgent, HttpAgent

from lightning_core.config import load_job
from lightning_core.config.job import resolved_config
from lightning_core.errors import ConfigError

WriteFile = Callable[..., Path]

REST = "algorithm: baseline\ntrain_dataset: [{n: 1}, {n: 2}]\n"
PROGRAM = "import json, sys\nprint(json.load(sys.stdin)['n'])\n"


def test_program_runs_in_the_folder_of_its_config(write: WriteFile) -> None:
    write("solve.py", PROGRAM)

    job = load_job(write("config.yaml", f"agent: {{command: [python3, solve.py]}}\n{REST}"))

    assert job.fit().metrics == {"train_reward": 1.5}


def test_folder_is_relative_to_the_config(write: WriteFile, folder: Path) -> None:
    (folder / "programs").mkdir()
    write("programs/solve.py", PROGRAM)
    config = write("config.yaml", f"agent: {{command: [python3, solve.py], folder: programs}}\n{REST}")

    assert load_job(config).fit().metrics == {"train_reward": 1.5}


def test_program_is_scored_by_the_grader_of_the_config(write: WriteFile) -> None:
    write("my_graders.py", "def length(result): return len(result.strip())\n")
    config = f"agent: {{command: [echo, four]}}\nreward: my_graders:length\n{REST}"

    assert load_job(write("config.yaml", config)).fit().metrics == {"train_reward": 4.0}


def test_program_may_score_itself_beside_a_grader(write: WriteFile) -> None:
    write("my_graders.py", "def double(result): return 2 * result\n")
    config = f"agent: {{command: [echo, '3'], reward: output}}\nreward: my_graders:double\n{REST}"

    assert load_job(write("config.yaml", config)).fit().metrics == {"train_reward": 6.0}


def test_program_may_be_written_as_toml_and_set_over(write: WriteFile) -> None:
    config = write("config.toml", '[agent]\ncommand = ["echo", "1"]\n\n[algorithm]\nname = "baseline"\n')

    job = load_job(config, overrides=["agent.command=[echo, two]", "agent.reward=grader"])

    assert isinstance(job.agent, CommandAgent)
    assert (job.agent.command, job.agent.reward) == (["echo", "two"], "grader")


def test_service_is_named_by_its_url(write: WriteFile) -> None:
    config = "agent: {url: 'http://127.0.0.1:9/solve', reward: report, headers: {Authorization: secret}}\n"

    job = load_job(write("config.yaml", config + REST))

    assert isinstance(job.agent, HttpAgent)
    assert (job.agent.url, job.agent.reward) == ("http://127.0.0.1:9/solve", "report")
    assert "secret" not in resolved_config(job)


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ("{command: [], rewrad: file}", r"config\.yaml:1: agent has no option 'rewrad'; .*Did you mean 'reward'"),
        ("{command: []}", r"config\.yaml:1: agent: command is \[\]; it is a list with a program"),
        ("{command: python solve.py}", r"config\.yaml:1: agent: command is 'python solve\.py'; it has to be a list"),
        ("{command: [./solve]}", r"config\.yaml:1: agent: there is no program '\./solve' in /"),
        ("{command: [echo], reward: grade}", r"agent: reward is 'grade'; it has to be 'output', 'file', 'report' or"),
        ("{url: 'localhost:1'}", r"config\.yaml:1: agent: url is 'localhost:1'; it is the URL of a service"),
        (
            "{url: 'http://h/', command: [echo]}",
            r"agent is a mapping with 'url', 'command'; it has to be 'module:name', ",
        ),
        ("{comand: [echo]}", r"agent is a mapping with 'comand'; .*Did you mean 'command'"),
        ("{}", r"config\.yaml:1: agent is a mapping with nothing; it has to be 'module:name', {command: "),
        ("[echo, 1]", r"config\.yaml:1: agent is a list; it has to be 'module:name', {command: "),
    ],
)
def test_what_is_no_agent_is_told_with_its_place_before_a_run(write: WriteFile, agent: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_job(write("config.yaml", f"agent: {agent}\n{REST}"))


@pytest.mark.parametrize("path", ["tickets.py", "agents/tickets.py", "./agents/tickets.py"])
def test_an_agent_may_be_given_as_its_file(write: WriteFile, folder: Path, path: str) -> None:
    (folder / "agents").mkdir()
    source = (folder / "my_agent.py").read_text()
    write(path, source.replace("solve", "classify"))
    job = load_job(write("config.yaml", f"agent: {path}:classify\n{REST}"))
    assert inspect.getfile(inspect.unwrap(job.agent)) == str(folder / path)  # type: ignore[arg-type]


def test_an_agent_whose_file_is_not_there_is_told_with_its_place(write: WriteFile, folder: Path) -> None:
    message = rf":1: agent: 'tickets\.py:classify': there is no file {folder / 'tickets.py'}"
    with pytest.raises(ConfigError, match=message):
        load_job(write("config.yaml", f"agent: tickets.py:classify\n{REST}"))
