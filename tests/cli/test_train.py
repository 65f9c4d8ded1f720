"""`agl train`: what it shows, what it writes, and what its exit status says."""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lightning_core.cli import agl

AGENT = """
from lightning_core import LLM, PromptTemplate, rollout
from lightning_core.algorithm import algo, run_batch
from lightning_core.errors import AlgorithmError

@rollout
async def solve(task):
    if task < 0:
        raise ValueError("no [bold]negative[/] tasks :smile:")
    return float(task)

@rollout
async def obey(task, prompt_template):
    return float("please" in prompt_template.format())

BEST = {
    "main_prompt": PromptTemplate(template="[red]please[/red] :smile: [/] " + "and " * 40 + "stop"),
    "main_llm": LLM(endpoint="http://localhost/v1", model="small", api_key="sk-secret"),
}

@algo
async def search(store, train_dataset, report):
    resources_id = (await store.add_resources(BEST)).resources_id
    batch = await run_batch(store, train_dataset, mode="train", resources_id=resources_id)
    report({"[b]reward": batch.mean_reward}, step=1, best_resources=BEST)

@algo
async def diverge():
    raise AlgorithmError("the search diverged at [b]step[/b] 3")

@algo
async def lose_pipe():
    raise BrokenPipeError(32, "Broken pipe")

@algo
async def meet_end():
    raise EOFError("the pipe to the model ended")

@algo
async def fail_late(store, train_dataset, report):
    first = (await store.add_resources({"main_prompt": PromptTemplate(template="answer")})).resources_id
    await run_batch(store, train_dataset, mode="train", resources_id=first)
    resources_id = (await store.add_resources(BEST)).resources_id
    await run_batch(store, train_dataset, mode="train", resources_id=resources_id)
    report({"loss": 0.25}, step=1, best_resources=BEST)
    raise AlgorithmError("the model does not answer any more")
"""

Train = Callable[..., Result]


@pytest.fixture
def folder(own_folder: Path) -> Path:
    """A folder with the module above."""
    (own_folder / "trained_agent.py").write_text(AGENT)
    return own_folder


@pytest.fixture
def train(folder: Path) -> Train:
    """Run `agl train` with a config."""

    def run(config: str, *options: str) -> Result:
        (folder / "config.yaml").write_text(config)
        return CliRunner().invoke(agl, ["train", str(folder / "config.yaml"), *options])

    return run


PLAIN = """
agent: trained_agent:solve
algorithm: baseline
store: memory
train_dataset: [1, 0]
val_dataset: [1]
"""
IMPROVED = """
agent: trained_agent:obey
algorithm: trained_agent:search
initial_resources:
  main_prompt: {resource_type: prompt_template, template: "answer"}
train_dataset: [1, 2]
test_dataset: [3]
"""


def test_without_a_terminal_each_moment_is_a_line(train: Train) -> None:
    result = train(PLAIN)
    assert result.exit_code == 0
    assert result.stderr == ""
    lines = [re.sub(r"(/\S*)?\brun-\w+|\d+\.\d s", "~", line) for line in result.stdout.splitlines()]
    lines = [re.sub(r"^\[ +~\]", "[   ~]", line) for line in lines]
    lines = [line for line in lines if not re.match(r"\[   ~\] .* of 3 done", line)]  # of a machine that is slow
    assert lines == [
        "planned: at most 3 rollouts",
        "[   ~] run ~ started",
        "",
        "succeeded in ~: 3 rollouts succeeded",
        "  reward on validation samples: 1.00 (95% 0.21..1.00, n=1)",
        "  train_reward: 0.5",
        "",
        "run ~ was kept in memory, and is gone when this process ends; its result is in ~",
        "its report: ~/report.html",
    ]


def test_output_is_the_result_as_json_without_keys(train: Train, folder: Path) -> None:
    output = folder / "result.json"
    result = train(IMPROVED, "--output", str(output))
    assert result.stdout.endswith(f"\nresult written to {output}\n")
    text = output.read_text(encoding="utf-8")
    assert "sk-secret" not in text
    record = json.loads(text)
    assert (record["status"], record["algorithm"]) == ("succeeded", "trained_agent:search")
    assert (record["budget"], record["failures"], record["failed_hooks"]) == (None, [], [])
    comparison = record["comparison"]
    assert (comparison["mode"], comparison["before"]["mean"], comparison["after"]["mean"]) == ("test", 0.0, 1.0)
    assert [used["calls"] for used in record["usage"].values()] == [0, 0]
    assert record["best_resources"]["main_prompt"]["template"].startswith("[red]please[/red] :smile: [/] and ")
    assert record["best_resources"]["main_llm"].keys() == {"resource_type", "endpoint", "model", "sampling_parameters"}
    assert record["initial_resources"]["main_prompt"]["template"] == "answer"
    assert record["metrics"] == {"[b]reward": 1.0, "test_reward_initial": 0.0, "test_reward": 1.0}
    assert (record["rollouts"]["succeeded"], record["rollouts"]["failed"]) == (4, 0)
    assert Path(record["folder"]).parent == folder / "runs"


def test_programs_get_json_lines_and_nothing_else(train: Train, folder: Path) -> None:
    module = folder / "trained_agent.py"
    module.write_text(module.read_text() + '\nprint("of the agent\'s module")\n')
    result = train(IMPROVED, "--json", "--output", str(folder / "result.json"))
    assert result.exit_code == 0
    events = [json.loads(line) for line in result.stdout.splitlines()]
    kinds = ["run_start", "attempt_end", "attempt_end", "step_end", "attempt_end", "attempt_end", "run_end", "result"]
    assert [event.pop("event") for event in events] == kinds
    assert events[-1] == json.loads((folder / "result.json").read_text())
    assert result.stderr == f"of the agent's module\nresult written to {folder}/result.json\n"


def test_run_that_fails_ends_json_lines_with_its_status(train: Train) -> None:
    result = train("agent: trained_agent:solve\nalgorithm: trained_agent:diverge\nstore: memory\n", "--json")
    assert result.exit_code == 1
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(each["event"], each.get("status")) for each in records] == [
        ("run_start", None),
        ("run_end", "failed"),
        ("result", "failed"),
    ]
    assert result.stderr == "Error: the search diverged at [b]step[/b] 3\n"


def test_output_into_a_folder_that_is_not_there_is_refused_before_the_run(train: Train, folder: Path) -> None:
    result = train(PLAIN, "--output", str(folder / "nowhere" / "result.json"))
    assert result.exit_code == 2
    assert result.stderr == (
        f"Error: --output {folder}/nowhere/result.json: there is no folder {folder.resolve()}/nowhere\n"
    )
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("algorithm", "line"),
    [("lose_pipe", "BrokenPipeError: [Errno 32] Broken pipe"), ("meet_end", "EOFError: the pipe to the model ended")],
)
def test_pipe_that_a_run_loses_is_not_taken_for_that_of_the_command(train: Train, algorithm: str, line: str) -> None:
    result = train(f"agent: trained_agent:solve\nalgorithm: trained_agent:{algorithm}\n")
    assert result.exit_code == 1
    assert result.stderr == f"Error: {line}\n"


FAILS_LATE = IMPROVED.replace("search", "fail_late").replace("test_dataset: [3]\n", "")


def test_run_that_fails_late_still_tells_the_best_so_far(train: Train, folder: Path) -> None:
    result = train(FAILS_LATE, "--output", str(folder / "result.json"))
    assert result.exit_code == 1
    assert result.stderr == "Error: the model does not answer any more\n"
    assert "\nfailed in " in result.stdout
    assert "\n  reward on training samples: 0.00 → 1.00 (+1.00, " in result.stdout
    assert "\nmain_prompt, the best found (+), against the first (-):\n- answer\n+ [red]please" in result.stdout
    record = json.loads((folder / "result.json").read_text())
    assert (record["status"], record["metrics"]) == ("failed", {"loss": 0.25})
    assert "please" in record["best_resources"]["main_prompt"]["template"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_result_that_cannot_be_written_is_still_shown(train: Train) -> None:
    for config, errors in (
        (IMPROVED, ["cannot write"]),
        (FAILS_LATE, ["cannot write", "the model does not answer any more"]),
    ):
        result = train(config, "--output", "/dev/full")
        assert result.exit_code == 1
        assert "main_prompt, the best found (+), against the first (-):" in result.stdout
        lines = result.stderr.splitlines()
        assert all(said in line for said, line in zip(errors, lines, strict=True))


def test_run_without_rewards_says_why(train: Train) -> None:
    result = train(PLAIN.replace("[1, 0]", "[-1]").replace("val_dataset: [1]", ""))
    assert result.exit_code == 1
    assert result.stdout.count("  failed 1x: ValueError: no [bold]negative[/] tasks :smile: (") == 1
    assert "agl resume" not in result.stdout, "nothing has succeeded that it could go on with"
    assert result.stderr == (
        "Error: epoch 1: none of 1 rollouts gave a reward; the first: ValueError: no [bold]negative[/] tasks :smile:\n"
    )


def test_terminal_shows_a_live_table_and_then_the_summary(folder: Path) -> None:
    (folder / "config.yaml").write_text(IMPROVED)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "lightning_core", "train", str(folder / "config.yaml")],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "60"},
    ) as process:
        os.close(theirs)
        shown = read_terminal(ours)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert errors == b""
    assert "\x1b[?25l" in shown  # the table hides the cursor, and shows it again
    assert "\x1b[?25h" in shown
    drawn = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown)
    assert re.search(r"time +\S+ s\b", drawn)
    assert re.search(r"\[b\]reward +1\b", drawn)
    assert "started" not in shown
    assert "\x1b[1msucceeded\x1b[0m in " in shown
    assert f"\x1b[32m+ [red]please[/red] :smile: [/] {'and ' * 40}stop\x1b[0m\r\n" in shown


def read_terminal(descriptor: int) -> str:
    """Read what was shown on a terminal, and close it."""
    shown = b""
    with contextlib.suppress(OSError):  # Linux says so when the other end is closed
        while data := os.read(descriptor, 65536):
            shown += data
    os.close(descriptor)
    return shown.decode()
