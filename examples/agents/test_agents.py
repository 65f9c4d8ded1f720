"""The agents of this folder, unchanged, against a model's server of this machine."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from lightning_proxy.testing import FakeEngine, tokens_of

from lightning_core import InMemoryLightningStore, LitAgent, PromptTemplate, Trainer
from lightning_core.adapter import read_model_calls
from lightning_core.config import load_job
from lightning_core.runs import FitResult
from lightning_core.store import LightningStore
from lightning_core.types import Span

FOLDER = Path(__file__).parent
ADK_PYTHON = FOLDER.parents[1] / ".venv-adk/bin/python"
PROGRAMS = f"{FOLDER.parents[1] / '.venv-adk/node_modules/.bin'}{os.pathsep}{os.environ['PATH']}"
LIMIT = 40
Copy = Callable[..., Path]
TASK = {"question": "What is 6 times 7?", "answer": "42"}
TOOL_CALL: dict[str, Any] = {
    "tool_calls": [
        {"id": "call-1", "type": "function", "function": {"name": "multiply", "arguments": '{"a": 6, "b": 7}'}}
    ]
}

# DSPy asks for tools in text, field by field.
DSPY_SAID = [
    "[[ ## next_thought ## ]]\nA multiplication.\n[[ ## next_tool_name ## ]]\nmultiply\n"
    '[[ ## next_tool_args ## ]]\n{"a": 6, "b": 7}\n[[ ## completed ## ]]',
    "[[ ## next_thought ## ]]\nThat is all.\n[[ ## next_tool_name ## ]]\nfinish\n"
    "[[ ## next_tool_args ## ]]\n{}\n[[ ## completed ## ]]",
    "[[ ## reasoning ## ]]\nThe tool said so.\n[[ ## answer ## ]]\n42\n[[ ## completed ## ]]",
]


def agent_of(name: str) -> LitAgent[Any]:
    """Import an example as it is."""
    spec = spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    agent: LitAgent[Any] = module.solve
    return agent


def proxy_to(engine: FakeEngine) -> dict[str, Any]:
    params = {"model": "hosted_vllm/small", "api_base": engine.url}
    return {"model_list": [{"model_name": "small", "litellm_params": params}]}


async def train(agent: LitAgent[Any], engine: FakeEngine) -> tuple[FitResult, InMemoryLightningStore]:
    store = InMemoryLightningStore()
    prompt = PromptTemplate(template="Use the tool for every multiplication.")
    trainer = Trainer(
        algorithm="baseline", store=store, llm_proxy=proxy_to(engine), initial_resources={"main_prompt": prompt}
    )
    return await trainer.fit_async(agent, [TASK]), store


async def check_calls(store: LightningStore, last: str) -> list[Span]:
    """Check that the only rollout has called a tool and then given its last answer; return its spans."""
    (rollout,) = await store.query_rollouts()
    spans = list(await store.query_spans(rollout.rollout_id))
    first, second = read_model_calls(spans)
    assert first.finish_reason == "tool_calls"
    assert list(second.response_token_ids or ()) == tokens_of(last)
    return spans


@pytest.mark.parametrize("example", sorted(FOLDER.glob("*_*.*")), ids=lambda each: each.name)
def test_an_example_is_short(example: Path) -> None:
    if example.name.startswith("test_"):
        return
    assert len(example.read_text(encoding="utf-8").splitlines()) <= LIMIT


@pytest.mark.parametrize(("name", "reward"), [("openai_sync", 1.0), ("openai_async", 1.0), ("openai_streaming", 0.125)])
async def test_agent_with_the_openai_sdk_is_recorded_with_its_tokens(name: str, reward: float) -> None:
    async with FakeEngine(["It's 42."]) as engine:
        result, store = await train(agent_of(name), engine)

    assert result.metrics["train_reward"] == pytest.approx(reward, rel=0.3)
    (rollout,) = await store.query_rollouts()
    (call,) = read_model_calls(list(await store.query_spans(rollout.rollout_id)))
    assert list(call.response_token_ids or ()) == tokens_of("It's 42.")


@pytest.mark.parametrize(
    ("name", "package", "spans"),
    [
        ("langgraph_agent", "langgraph", set()),
        ("openai_agents_sdk", "agents.run", set()),
        ("google_genai_agent", "google.genai", set()),
        ("pydantic_ai_agent", "pydantic_ai", {"invoke_agent agent", "execute_tool multiply"}),
        ("autogen_agent", "autogen_agentchat", {"invoke_agent solver", "execute_tool multiply"}),
        ("crewai_agent", "crewai", {"agentlightning.operation"}),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:crewai", "ignore:Cannot set an attribute:ImportWarning")
async def test_agent_of_a_framework_has_its_prompt_and_tool_and_is_recorded(
    name: str, package: str, spans: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip(package, reason=f"{name} needs a package that is not installed here")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))  # where CrewAI keeps what its tasks gave
    looked_up = Mock(wraps=socket.getaddrinfo)
    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    async with FakeEngine([TOOL_CALL, "It's 42."]) as engine:
        result, store = await train(agent_of(name), engine)
        asked = [received.fields["messages"] for received in engine.received]

    assert result.metrics["train_reward"] == 1.0
    assert "Use the tool for every multiplication." in asked[0][0]["content"]
    assert [message["content"] for message in asked[1] if message["role"] == "tool"] == ["42"]
    recorded = await check_calls(store, "It's 42.")
    assert spans <= {span.name for span in recorded}
    assert {each.args[0] for each in looked_up.call_args_list} == {"127.0.0.1"}, "it calls home"


async def test_agent_of_dspy_has_its_prompt_and_tool_and_is_recorded() -> None:
    pytest.importorskip("dspy", reason="dspy is not installed here")
    async with FakeEngine(DSPY_SAID) as engine:
        result, store = await train(agent_of("dspy_agent"), engine)
        asked = [received.fields["messages"] for received in engine.received]

    assert result.metrics["train_reward"] == 1.0
    assert all("Use the tool for every multiplication." in messages[0]["content"] for messages in asked)
    (rollout,) = await store.query_rollouts()
    recorded = list(await store.query_spans(rollout.rollout_id))
    assert [list(call.response_token_ids or ()) for call in read_model_calls(recorded)] == list(
        map(tokens_of, DSPY_SAID)
    )
    (use,) = (span for span in recorded if span.name == "agentlightning.operation")
    assert use.attributes["agentlightning.operation.output"] == 42


@pytest.mark.skipif(not ADK_PYTHON.exists(), reason="Google ADK is tried by `make frameworks`")
async def test_program_with_google_adk_has_its_prompt_and_tool_and_is_recorded(copy_with_model: Copy) -> None:
    async with FakeEngine([TOOL_CALL, "It's 42."]) as engine:
        config = copy_with_model(engine.url, "adk_agent.py", "adk_agent.yaml")
        config.write_text(config.read_text(encoding="utf-8").replace("adk/bin/python", str(ADK_PYTHON)))
        job = load_job(config)
        result = await job.trainer.fit_async(job.agent, job.train_dataset)
        asked = [received.fields["messages"] for received in engine.received]

    assert result.metrics["train_reward"] == 1.0
    assert "Use the tool for every multiplication." in asked[0][0]["content"]
    assert ["42" in message["content"] for message in asked[1] if message["role"] == "tool"] == [True]
    await check_calls(job.trainer.store, "It's 42.")


@pytest.mark.parametrize(("library", "program"), [("inspect", "inspect_sample.py"), ("verifiers", "verifiers_task.py")])
async def test_program_that_runs_a_task_of_a_library_has_its_score_and_is_recorded(
    library: str, program: str, copy_with_model: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = os.environ.get(f"AGL_{library.upper()}_PYTHON")
    if python is None:
        pytest.skip(f"AGL_{library.upper()}_PYTHON does not name a Python that has it")
    monkeypatch.setenv("PATH", f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}")  # there may be a uv
    uv = json.dumps([name for name in os.environ if name.startswith("UV_")])
    async with FakeEngine(["14", "It is 13."]) as engine:
        config = copy_with_model(engine.url, program, f"{library}.yaml")
        text = config.read_text(encoding="utf-8").replace("agent:\n", f"agent:\n  pass_variables: {uv}\n", 1)
        config.write_text(text.replace(f"{library}/bin/python", python))
        job = load_job(config)
        result = await job.trainer.fit_async(job.agent, job.train_dataset)
        asked = [[message["content"] for message in received.fields["messages"]] for received in engine.received]

    assert result.metrics["train_reward"] == 0.5
    assert asked == [["Answer with the number alone.", f"What is {a} times 7?"] for a in (2, 6)]
    for rollout in await job.trainer.store.query_rollouts():
        (call,) = read_model_calls(list(await job.trainer.store.query_spans(rollout.rollout_id)))
        assert list(call.response_token_ids or ()) in (tokens_of("14"), tokens_of("It is 13."))


@pytest.mark.parametrize(
    ("script", "program", "tool", "argument"),
    [
        ("claude_code.sh", "claude", "Bash", "command"),
        ("codex.sh", "codex", "exec_command", "cmd"),
        ("gemini_cli.sh", "gemini", "run_shell_command", "command"),
    ],
)
async def test_coding_agent_has_its_prompt_and_tools_and_is_recorded(
    script: str, program: str, tool: str, argument: str, monkeypatch: pytest.MonkeyPatch, copy_with_model: Copy
) -> None:
    if shutil.which(program, path=PROGRAMS) is None:
        pytest.skip(f"{program} is tried by `make frameworks`")
    monkeypatch.setenv("PATH", PROGRAMS)
    write = {"name": tool, "arguments": json.dumps({argument: "echo 42 >answer.txt"})}
    async with FakeEngine(
        [{"tool_calls": [{"id": "call-1", "type": "function", "function": write}]}, "Done."]
    ) as engine:
        config = copy_with_model(engine.url, script, "claude_code.yaml")
        config.write_text(config.read_text(encoding="utf-8").replace("claude_code.sh", script))
        job = load_job(config)
        result = await job.trainer.fit_async(job.agent, job.train_dataset)
        asked = [received.fields["messages"] for received in engine.received]

    assert result.metrics["train_reward"] == 1.0, result.failures
    assert "What is 6 times 7? Write only the result into the file answer.txt." in str(asked[0][-1]["content"])
    await check_calls(job.trainer.store, "Done.")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed here")
@pytest.mark.parametrize(
    ("said", "answer", "reward"),
    [
        ("It's 7.", "chat.completion", 0.0),  # the type of the object that the model's server answers with
        ('It says "7\\8": 42.', "42", 1.0),
        ("1,\n2,\n42", "42", 1.0),
        ("", "42", 0.0),
    ],
)
async def test_shell_script_looks_for_the_answer_in_what_the_model_says(
    copy_with_model: Copy, said: str, answer: str, reward: float
) -> None:
    async with FakeEngine([said]) as engine:
        config = copy_with_model(engine.url, "curl_agent.sh", "curl_agent.yaml")
        text = config.read_text(encoding="utf-8")
        config.write_text(text.replace('"42"', f'"{answer}"').replace('"25"', f'"{answer}"'))
        job = load_job(config)
        result = await job.trainer.fit_async(job.agent, job.train_dataset)

    assert result.metrics["train_reward"] == reward


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed here")
async def test_shell_script_is_trained_by_the_command(copy_with_model: Copy, tmp_path: Path) -> None:
    async with FakeEngine(["It's 42."]) as engine:
        copy_with_model(engine.url, "curl_agent.sh", "curl_agent.yaml")
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "lightning_core", "train", "curl_agent.yaml", "--output", "result.json"],
            cwd=tmp_path,
            env={**os.environ, "AGL_RUNS_DIR": str(tmp_path / "runs")},
            capture_output=True,
            text=True,
            timeout=100,
        )

    assert done.returncode == 0, done.stdout + done.stderr
    metrics = json.loads((tmp_path / "result.json").read_text())["metrics"]
    assert metrics["train_reward"] == 0.5  # the second answer is 25
    assert len(engine.received) == 2
