"""Each message that docs/troubleshoot.md explains is the one that users see."""

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from lightning_core import PromptTemplate, RolloutConfig, Trainer, emit_message, rollout
from lightning_core.cli import agl

PAGE = Path(__file__).parents[2] / "docs" / "troubleshoot.md"
MESSAGES = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.M)
AGENTS = """
from lightning_core import rollout

@rollout
async def greet(task, prompt_template):
    return float(task["name"] in prompt_template.format(name=task["name"]))

@rollout
async def text(task):
    return "Hello Ada"

@rollout
async def nothing(task):
    pass

def plain(task):
    return 1.0
"""
DATA = "train_dataset: [{name: Ada}, {name: Alan}]\n"


@rollout
def slow(task: int) -> None:
    time.sleep(0.5)


@rollout
def broken(task: int) -> None:
    raise RuntimeError("broken")


def trained(config: str) -> Callable[[], str]:
    def train() -> str:
        Path("config.yaml").write_text(f"{config}\n{DATA}")
        return CliRunner().invoke(agl, ["train", "config.yaml"]).output

    return train


async def _in_a_loop() -> None:
    Trainer(algorithm="baseline").fit(slow, [1])


WAYS: dict[str, Callable[[], object]] = {
    "no algorithm named": trained("agent: trouble:greet\nalgorithm: verll"),
    "has no option": trained("agent: trouble:greet\nalgorithm: {name: baseline, n_epoch: 2}"),
    "no module": trained("agent: my_agnt:solve\nalgorithm: baseline"),
    "is of type function": trained("agent: trouble:plain\nalgorithm: baseline"),
    "gave a reward": trained("agent: trouble:nothing\nalgorithm: baseline"),
    "InvalidResult": trained("agent: trouble:text\nalgorithm: baseline"),
    "have all failed": lambda: Trainer(algorithm="baseline").fit(broken, list(range(20))),
    "MissingResource": lambda: CliRunner().invoke(agl, ["run", "trouble.py:greet", "--task", '{"name": "Ada"}']).output,
    "template field": lambda: Trainer(
        initial_resources={"main_prompt": PromptTemplate(template='Answer as {"total": 1.20}')}
    ),
    "no value for placeholder": lambda: PromptTemplate(template="Answer {question}").format(text="1 + 1?"),
    "no active tracer": lambda: emit_message("hello"),
    "AgentTimeout": lambda: Trainer(algorithm="baseline", rollout_config=RolloutConfig(timeout_seconds=0.05)).fit(
        slow, [1]
    ),
}


@pytest.mark.parametrize("known", WAYS)
def test_a_message_of_the_page_is_what_users_see(known: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "trouble", raising=False)  # of the test before
    Path("trouble.py").write_text(AGENTS)
    [message] = [each for each in MESSAGES if known in each]
    try:
        said = str(WAYS[known]())
    except Exception as exc:
        said = f"{type(exc).__name__}: {exc}"
    pattern = ".*".join(re.escape(part) for part in message.split("..."))
    assert re.search(pattern, said, re.S), said


async def test_fit_in_a_running_loop_says_what_the_page_says() -> None:
    [message] = [each for each in MESSAGES if "running event loop" in each]
    with pytest.raises(Exception, match=message):
        await _in_a_loop()
