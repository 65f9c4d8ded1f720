"""A program as an agent: what it is told, what becomes of its output, and which mistakes are known before a run."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from lightning_agents import CommandAgent, command
from programs import executable, python, run, shell

from lightning_core import Trainer
from lightning_core.emitter import find_final_reward, get_rewards_from_span
from lightning_core.errors import InvalidAgent, NoRewards
from lightning_core.types import LLM, Attempt, AttemptedRollout, NamedResources, PromptTemplate, ProxyLLM

ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"


async def environment_of(
    agent: CommandAgent, task: Any = None, resources: NamedResources | None = None
) -> dict[str, str]:
    """What a program that prints its environment was given."""
    attempt = Attempt(rollout_id="ro-1", attempt_id="at-1", sequence_id=1, start_time=0)
    rollout = AttemptedRollout(rollout_id="ro-1", input=task, mode="train", start_time=0, attempt=attempt)
    given: dict[str, str] = json.loads(await agent.rollout_async(task, resources or {}, rollout))
    return given


@pytest.mark.parametrize(
    ("printed", "rewards"),
    [
        ("0.5", [("primary", 0.5)]),
        ("thinking...\n\n1  \n\n", [("primary", 1.0)]),
        ('{"right": 1, "short": 0.25}', [("right", 1.0), ("short", 0.25)]),
        ('{"reward": 0.75}', [("primary", 0.75)]),
    ],
)
async def test_last_line_is_the_reward(printed: str, rewards: list[tuple[str, float]]) -> None:
    ran = await run(shell(f"printf '%s' '{printed}'"))

    assert ran.rollout.status == "succeeded"
    assert [(each.name, each.value) for each in get_rewards_from_span(ran.spans[-1])] == rewards


@pytest.mark.parametrize(
    ("printed", "message"),
    [
        ("all done", r"the last line that .* printed is not a reward: all done; it is a number or a JSON object"),
        ("NaN", "is not a reward: NaN"),
        ('{"right": "yes"}', r'is not a reward: \{"right": "yes"\}'),
        ("", "printed nothing, and its last line is to be its reward: .*or choose another reward: file, report"),
    ],
)
async def test_last_line_that_is_no_reward_fails_the_attempt(printed: str, message: str) -> None:
    ran = await run(shell(f"printf '%s' '{printed}'"))

    assert ran.rollout.status == "failed"
    assert ran.failure is not None
    assert ran.failure["type"] == "InvalidResult"
    assert re.search(message, ran.failure["message"])


async def test_file_has_the_reward_and_output_is_free() -> None:
    ran = await run(shell('echo talk; echo 0.25 >"$AGL_REWARD_FILE"; echo more talk', reward="file"))

    assert find_final_reward(ran.spans) == 0.25


@pytest.mark.parametrize("make", ["echo 1; :", "mkfifo", "mkdir", "ln -s /dev/zero"])
async def test_what_is_no_file_is_a_failure_and_is_not_waited_for(make: str) -> None:
    ran = await run(shell(f'{make} "$AGL_REWARD_FILE"', reward="file"))

    assert ran.failure is not None
    assert "has left no file AGL_REWARD_FILE; it has a number or a JSON object" in ran.failure["message"]


async def test_grader_is_given_all_that_was_printed() -> None:
    def count_lines(result: str, task: int) -> float:
        return len(result.splitlines()) / task

    ran = await run(shell("echo a; echo b", reward="grader"), 4, reward=count_lines)

    assert find_final_reward(ran.spans) == 0.5


async def test_without_a_model_a_program_gets_its_task_and_no_word_of_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine-and-nobody-elses")
    monkeypatch.setenv("SECRET_OF_OURS", "1")
    monkeypatch.setenv("WANTED", "2")
    monkeypatch.setenv("LANG", "C.UTF-8")

    given = await environment_of(python(ENVIRONMENT, reward="grader", pass_variables=["WANTED"]), {"question": "?"})

    assert (given.pop("WANTED"), given.pop("LANG")) == ("2", "C.UTF-8")
    assert given.keys() >= {"PATH", "AGL_TASK_FILE", "AGL_REWARD_FILE", "AGL_ROLLOUT_ID", "AGL_ATTEMPT_ID"}
    assert given["AGL_MODE"] == "train"
    assert not {
        name
        for name in given
        if name.startswith(("OPENAI", "ANTHROPIC", "GOOGLE", "GEMINI", "SECRET", "AGL_REPORT", "AGL_MODEL"))
    }


@pytest.mark.parametrize("is_behind_proxy", [False, True], ids=["plain", "proxy"])
async def test_model_and_prompt_come_in_variables(is_behind_proxy: bool) -> None:
    kind = ProxyLLM if is_behind_proxy else LLM
    llm = kind(endpoint="http://host:1/v1", model="small", sampling_parameters={"temperature": 0.5}, api_key="key")
    other = LLM(endpoint="http://elsewhere/v1", model="large")
    prompt = PromptTemplate(template="Answer: {question}")
    resources: NamedResources = {"a": other, "main_llm": llm, "prompt": prompt}

    given = await environment_of(python(ENVIRONMENT, reward="grader"), {"question": "1 + 1?"}, resources=resources)

    attempt = "/rollout/ro-1/attempt/at-1" if is_behind_proxy else ""
    assert given["OPENAI_BASE_URL"] == f"http://host:1{attempt}/v1"
    assert given["ANTHROPIC_BASE_URL"] == f"http://host:1{attempt}"
    assert given["GOOGLE_GEMINI_BASE_URL"] == given["ANTHROPIC_BASE_URL"]
    assert given["OPENAI_API_KEY"] == given["ANTHROPIC_API_KEY"] == given["GEMINI_API_KEY"] == "key"
    assert given["AGL_MODEL"] == "small"
    assert json.loads(given["AGL_SAMPLING_PARAMETERS"]) == {"temperature": 0.5}
    assert given["AGL_PROMPT"] == "Answer: 1 + 1?"
    assert given["AGL_PROMPT_TEMPLATE"] == "Answer: {question}"
    assert given.get("AGL_REPORT_URL") == (f"http://host:1{attempt}/report" if is_behind_proxy else None)
    assert given.get("AGL_REPORT_KEY") == ("key" if is_behind_proxy else None)


async def test_prompt_whose_placeholders_the_task_does_not_have_comes_as_a_template_alone() -> None:
    resources: NamedResources = {"prompt": PromptTemplate(template="Answer: {question}")}

    given = await environment_of(python(ENVIRONMENT, reward="grader"), "a text", resources=resources)

    assert given["AGL_PROMPT_TEMPLATE"] == "Answer: {question}"
    assert "AGL_PROMPT" not in given


@pytest.mark.parametrize(("length", "is_variable"), [(10, True), (131_060, True), (131_061, False), (400_000, False)])
async def test_prompt_is_in_a_file_and_in_a_variable_where_it_is_short_enough(length: int, is_variable: bool) -> None:
    resources: NamedResources = {"prompt": PromptTemplate(template="é {text}")}
    text = "x" * (length - 3)
    script = (
        "import os; prompt = open(os.environ['AGL_PROMPT_FILE'], encoding='utf-8').read(); "
        "assert os.environ.get('AGL_PROMPT', prompt) == prompt; print(len(prompt), 'AGL_PROMPT' in os.environ)"
    )
    printed: list[str] = []

    agent = python(script, reward="grader")
    await run(agent, {"text": text}, resources=resources, reward=lambda result: printed.append(result) or 1.0)

    assert printed == [f"{length - 1} {is_variable}\n"]


async def test_fields_of_the_task_come_in_variables_of_their_own() -> None:
    agent = python(ENVIRONMENT, reward="grader", task_variables={"Q": "question", "TAGS": "meta.tags", "N": "meta.n"})

    given = await environment_of(agent, {"question": "é?", "meta": {"tags": ["a", "b"], "n": 3}})

    assert (given["Q"], given["TAGS"], given["N"]) == ("é?", '["a","b"]', "3")


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"q": 1}, r"the task has no field 'question' for the variable Q: there is no 'question' \(there: q\)"),
        ("text", r"no field 'question' for the variable Q: .*\(there: it is of type str\)"),
        ({"question": object()}, "the task cannot be written as JSON"),
    ],
)
async def test_task_that_a_program_cannot_be_given_is_a_failure_that_names_it(task: Any, message: str) -> None:
    ran = await run(shell("echo 1", task_variables={"Q": "question"}), task)

    assert ran.failure is not None
    assert ran.failure["type"] == "InvalidTask"
    assert re.search(message, ran.failure["message"])


async def test_task_is_the_standard_input_and_a_file() -> None:
    script = (
        "import json, os, sys; task = json.load(sys.stdin); "
        "assert task == json.load(open(os.environ['AGL_TASK_FILE'])); print(len(task['text']))"
    )
    ran = await run(python(script), {"text": "é" * 500_000})

    assert find_final_reward(ran.spans) == 500_000.0


async def test_files_of_an_attempt_are_gone_after_it() -> None:
    agent = shell('echo "$AGL_TASK_FILE"', reward="grader")
    places: list[Path] = []
    await run(agent, reward=lambda result: places.append(Path(result.strip())) or 1.0)

    assert not places[0].parent.exists()


async def test_exit_status_fails_the_attempt_with_the_end_of_what_was_printed() -> None:
    ran = await run(shell('echo working; i=0; while [ $i -lt 400 ]; do echo "line $i" >&2; i=$((i+1)); done; exit 3'))

    assert ran.rollout.status == "failed"
    assert ran.failure is not None
    assert ran.failure["type"] == "ProgramFailed"
    assert "ended with exit status 3; its stderr ends with: " in ran.failure["message"]
    assert ran.failure["message"].endswith("line 398\nline 399")
    assert len(ran.failure["message"]) < 1_300
    (span,) = ran.spans
    trace = span.attributes["exception.stacktrace"]
    assert isinstance(trace, str)
    assert "--- the end of its stdout ---\nworking" in trace
    assert "line 150" in trace
    assert len(trace) < 20_000


async def test_signal_is_named() -> None:
    ran = await run(shell("kill -SEGV $$"))

    assert ran.failure is not None
    assert "was ended by the signal Segmentation fault; it wrote no stderr" in ran.failure["message"]


async def test_exit_status_75_is_a_fault_and_no_attempt_is_used_up() -> None:
    ran = await run(shell("echo 'the search engine is down' >&2; exit 75"))

    assert ran.rollout.status == "requeuing"
    assert ran.fault is not None
    assert ran.fault.endswith("says that what it needs is out of reach: the search engine is down")


async def test_program_that_vanished_is_a_fault(tmp_path: Path) -> None:
    program = executable(tmp_path / "solve", "#!/bin/sh\necho 1\n")
    agent = CommandAgent(["./solve"], folder=tmp_path)
    assert find_final_reward((await run(agent)).spans) == 1.0
    program.unlink()

    ran = await run(agent)

    assert ran.fault is not None
    assert f"the program ./solve cannot be started in {tmp_path}: " in ran.fault


async def test_output_without_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import sys; [sys.stdout.write('x' * 1000 + '\\n') for _ in range(20_000)]; print(1)"
    kept: list[int] = []
    monkeypatch.setattr(command, "MAX_OUTPUT_BYTES", 5_000)
    agent = python(script, reward="grader")

    await run(agent, reward=lambda result: kept.append(len(result)) or 1.0)

    assert kept == [5_000]


@pytest.mark.parametrize("script", ['echo "$OPENAI_API_KEY $OTHER" >&2; exit 1', 'echo "$OPENAI_API_KEY $OTHER"'])
async def test_keys_that_a_program_prints_are_not_recorded(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setenv("OTHER", "hunter2hunter2")
    agent = shell(script, pass_variables=["OTHER"])
    llm = LLM(endpoint="http://host:1/v1", model="small", api_key="agl-at-abc.def")

    ran = await run(agent, resources={"main_llm": llm})

    everything = json.dumps([ran.failure, ran.spans[0].attributes])
    assert "*** ***" in everything
    assert "abc.def" not in everything
    assert "hunter2" not in everything


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"command": []}, r"command is \[\]; it is a list with a program"),
        ({"command": [" "]}, r"command is \[' '\]"),
        (
            {"command": "python solve.py"},
            r"command is 'python solve.py'; it is a list .* of the shell \['sh', '-c', ",
        ),
        ({"command": ["no-such-program-anywhere"]}, "there is no program 'no-such-program-anywhere' on the PATH"),
        ({"command": ["./solve"]}, r"there is no program './solve' in /"),
        ({"command": ["solve.py"]}, r"on the PATH; for one in the folder write './solve.py'"),
        ({"command": ["./solve.py"]}, r"no program './solve.py' in .*: make it executable, or name what runs it"),
        ({"folder": "/no/such/folder"}, "folder is '/no/such/folder', and there is none"),
        ({"reward": "outptu"}, r"reward is 'outptu'; it is one of output, file, report, grader. Did you mean 'output'"),
        ({"pass_variables": "HOME"}, r"pass_variables is 'HOME'; it is a list"),
        ({"pass_variables": ["NOT_SET_ANYWHERE"]}, "pass_variables names NOT_SET_ANYWHERE, which is not set here"),
        ({"task_variables": {"A-B": "x"}}, "task_variables has 'A-B': 'x'; it leads from names of variables to fields"),
        (
            {"task_variables": {"OPENAI_BASE_URL": "x"}},
            "task_variables has OPENAI_BASE_URL, which has another meaning for programs",
        ),
    ],
)
def test_mistakes_are_known_before_a_run(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "solve.py").write_text("print(1)")

    with pytest.raises(InvalidAgent, match=message):
        CommandAgent(**{"command": ["sh", "-c", "echo 1"], "folder": tmp_path, **options})


def test_run_says_why_its_programs_failed() -> None:
    with pytest.raises(NoRewards, match="ended with exit status 1; its stderr ends with: no such model"):
        Trainer(algorithm="baseline").fit(shell("echo no such model >&2; exit 1"), [1])


@pytest.mark.slow
def test_programs_are_run_by_runner_processes() -> None:
    agent = shell('cat; echo; echo "$N"', task_variables={"N": "n"})

    result = Trainer(algorithm="baseline", strategy="processes", n_runners=2).fit(agent, [{"n": 1}, {"n": 2}])

    assert result.metrics == {"train_reward": 1.5}
