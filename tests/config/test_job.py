"""From a config file to a run."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lightning_core.algorithm import Baseline
from lightning_core.config import load_job
from lightning_core.errors import ConfigError
from lightning_core.execution import LocalStrategy
from lightning_core.runner import LitAgentRunner
from lightning_core.types import PromptTemplate

WriteFile = Callable[..., Path]


def test_yaml_config_says_all_that_trainer_and_fit_take(write: WriteFile) -> None:
    write("train.jsonl", "1\n0\n")
    write(
        "my_hooks.py", "starts = []\nclass Watch:\n    def lightning_run_start(self, run_id): starts.append(run_id)\n"
    )
    job = load_job(
        write(
            "config.yaml",
            """
agent: my_agent:solve
algorithm: {name: baseline, n_epochs: 2}
store: {name: memory, run_id: mine}
tracer: otel
runner: {name: agent, heartbeat_interval: 3}
strategy: local
n_runners: 4
max_rollouts: 50
initial_resources:
  main_prompt: {resource_type: prompt_template, template: "Hello {name}", engine: f-string}
train_dataset: train.jsonl
val_dataset: [1]
test_dataset: [0.5]
hooks: ["my_hooks:Watch"]
""",
        )
    )
    trainer = job.trainer
    assert isinstance(trainer.algorithm, Baseline)
    assert trainer.algorithm.n_epochs == 2
    assert isinstance(trainer.strategy, LocalStrategy)
    assert trainer.strategy.n_runners == 4
    runner = trainer.make_runner()
    assert isinstance(runner, LitAgentRunner)
    assert (runner.heartbeat_interval, runner.max_rollouts, runner.tracer) == (3, 50, trainer.tracer)
    assert trainer.make_runner() is not runner
    assert trainer.initial_resources == {"main_prompt": PromptTemplate(template="Hello {name}")}
    result = job.fit()
    assert result.run_id == "mine"
    assert result.metrics == {"train_reward": 0.5, "val_reward": 1.0, "test_reward_initial": 0.5, "test_reward": 0.5}
    assert sys.modules["my_hooks"].starts == ["mine"]


def test_toml_config_says_the_same(write: WriteFile) -> None:
    job = load_job(
        write(
            "config.toml",
            'agent = "my_agent:solve"\ntrain_dataset = [1, 0]\n[algorithm]\nname = "baseline"\nn_epochs = 2\n'
            '[initial_resources.main_prompt]\nresource_type = "prompt_template"\ntemplate = "Hello {name}"\n',
        )
    )
    assert job.trainer.initial_resources == {"main_prompt": PromptTemplate(template="Hello {name}")}
    assert job.fit().metrics == {"train_reward": 0.5}


def test_modules_beside_the_config_come_before_all_others(write: WriteFile, folder: Path) -> None:
    config = write("config.yaml", "agent: my_agent:solve\nalgorithm: baseline\n")
    load_job(config)
    load_job(config)
    assert sys.path[0] == str(folder)
    assert sys.path.count(str(folder)) == 1


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ("my_agent:slove", ":1: agent: module 'my_agent' has no 'slove', which 'my_agent:slove' names. Did you mean"),
        ("not_there:solve", ":1: agent: no module 'not_there', which 'not_there:solve' names; is it installed, "),
        ("my_agent", ":1: agent: 'my_agent' does not name an object; the form is 'package.module:attribute'"),
        (
            "my_agent:NOT_AN_AGENT",
            ":1: agent: 'my_agent:NOT_AN_AGENT' is of type int; decorate the function with @rollout, or name an ",
        ),
        ("lightning_core:LitAgent", ":1: agent: 'lightning_core:LitAgent' is the class LitAgent; "),
    ],
)
def test_agent_that_is_none_says_so_with_its_line(write: WriteFile, folder: Path, agent: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_job(write("config.yaml", f"agent: {agent}\nalgorithm: baseline\n"))
    assert str(raised.value).startswith(f"{folder / 'config.yaml'}{message}")


def test_module_that_fails_at_import_says_where(write: WriteFile, folder: Path) -> None:
    write("broken_agent.py", "import broken_helper\n")
    write("broken_helper.py", "import json\n\njson.loads('{')\n")
    with pytest.raises(ConfigError) as raised:
        load_job(write("config.yaml", "algorithm: baseline\nagent: broken_agent:solve\n"))
    message = str(raised.value)
    assert message.startswith(
        f"{folder / 'config.yaml'}:2: agent: module 'broken_agent' cannot be imported: JSONDecode"
    )
    assert message.endswith(f"({folder / 'broken_helper.py'}:3)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algorithm: baseline\ntrain_dataset: missing.jsonl", ":3: train_dataset: cannot read dataset "),
        ("algorithm: baseline\nval_dataset: my_agent:nope", ":3: val_dataset: module 'my_agent' has no 'nope'"),
        ("algorithm: baseline\ntest_dataset: []", ":3: test_dataset: dataset [] is empty"),
        ('algorithm: baseline\nhooks: ["my_agent:nope"]', ":3: hooks: module 'my_agent' has no 'nope'"),
        ("algorithm:\n  name: baseline\n  n_epochs: 0", ":4: algorithm: n_epochs is 0; it is a whole number from 1 on"),
        (
            "algorithm:\n  name: baseline\n  n_epochs: two",
            ":4: algorithm 'baseline': n_epochs is 'two'; it has to be a whole number",
        ),
        (
            "algorithm: {n_epochs: 2}",
            ":2: algorithm: it is a mapping without a string under 'name' (its keys: 'n_epochs')",
        ),
        (
            "algorithm: my_agent:solve",
            ":2: algorithm: algorithm 'my_agent:solve' is a FunctionalLitAgent; it has to be ",
        ),
        (
            "algorithm: baseline\nrunner: agnet",
            ":3: runner: no runner named 'agnet'; installed: agent, agentos. Did you mean 'agent'?",
        ),
        (
            "algorithm: baseline\ninitial_resources:\n  p:\n    resource_type: prompt_template\n    template: '{a.b}'",
            ":4: initial_resources: p: template field {a.b} is not a plain name",
        ),
    ],
)
def test_what_cannot_be_as_it_is_said_is_told_with_its_line(
    write: WriteFile, folder: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        load_job(write("config.yaml", f"agent: my_agent:solve\n{text}\n"))
    assert str(raised.value).startswith(f"{folder / 'config.yaml'}{message}")


def test_all_that_is_wrong_with_components_is_told_at_once(write: WriteFile, folder: Path) -> None:
    config = write("config.yaml", "agent: my_agent:solve\nalgorithm: {name: baseline, epochs: 1}\nrunner: agnet\n")
    with pytest.raises(ConfigError) as raised:
        load_job(config)
    assert [line.split(": ")[0] for line in str(raised.value).splitlines()] == [f"{config}:2", f"{config}:3"]


def test_module_of_a_component_that_fails_at_import_says_where(write: WriteFile, folder: Path) -> None:
    write("broken_search.py", "\n1 / 0\n")
    with pytest.raises(ConfigError, match=rf"ZeroDivisionError: division by zero \({folder}/broken_search.py:2\)$"):
        load_job(write("config.yaml", "agent: my_agent:solve\nalgorithm: broken_search:Search\n"))


def test_an_agent_module_that_another_folder_has_taken_the_name_of_is_refused(
    write: WriteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other" / "my_agent.py"
    other.parent.mkdir()
    other.write_text(write("my_agent_source.py", "solve = 1\n").read_text())
    taken = type(sys)("my_agent")
    taken.__file__ = str(other)
    monkeypatch.setitem(sys.modules, "my_agent", taken)
    taken.solve = None  # type: ignore[attr-defined]
    write("my_agent.py", "from lightning_core import rollout\n@rollout\ndef solve(task): return 1.0\n")
    config = write("config.yaml", "agent: my_agent:solve\nalgorithm: baseline\ntrain_dataset: [1]\n")
    with pytest.raises(ConfigError, match="run each config in a process of its own"):
        load_job(config)


HOOKS = """
class Demanding:
    def __init__(self, x):
        pass

class Broken:
    def __init__(self):
        raise OSError("no port")

class Wrong:
    def lightning_run_start(self, nope):
        pass
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Demanding", r"it raised TypeError\(.*missing 1 required positional argument: 'x'"),
        ("Broken", r"it raised OSError\('no port'\)"),
        ("Wrong", "plugin 'Wrong': lightning_run_start has no argument 'nope'; it has: run_id"),
    ],
)
def test_hook_that_cannot_be_used_is_told_with_its_line_or_what_set_it(
    write: WriteFile, folder: Path, name: str, words: str
) -> None:
    write("odd_hooks.py", HOOKS)
    text = "agent: my_agent:solve\nalgorithm: baseline\n"
    with pytest.raises(ConfigError, match=rf"^{folder}/config.yaml:4: hooks: {words}"):
        load_job(write("config.yaml", f"{text}hooks:\n  - odd_hooks:{name}\n"))
    with pytest.raises(ConfigError, match=rf"^--set hooks: hooks: {words}"):
        load_job(write("config.yaml", text), overrides=[f"hooks=[odd_hooks:{name}]"])


def test_what_an_algorithm_cannot_use_is_told_with_its_line(write: WriteFile, folder: Path) -> None:
    write(
        "picky.py",
        "from lightning_core.algorithm import Algorithm\nfrom lightning_core.errors import InvalidInput\n\n\n"
        "class Picky(Algorithm):\n    def run(self, train_dataset=None, val_dataset=None):\n        pass\n\n"
        "    def plan(self, train_dataset, val_dataset):\n"
        "        raise InvalidInput('no sample is left to learn from')\n",
    )
    job = load_job(write("config.yaml", "agent: my_agent:solve\nalgorithm: picky:Picky\n"))
    with pytest.raises(ConfigError, match=rf"^{folder}/config.yaml:2: algorithm: no sample is left to learn from$"):
        job.plan()


@pytest.mark.parametrize("template", ["prompts/first.txt", "prompt.jinja", "@prompt.md"])
def test_the_name_of_a_file_in_place_of_a_prompt_is_refused(write: WriteFile, template: str) -> None:
    resources = f"initial_resources:\n  main:\n    resource_type: prompt_template\n    template: '{template}'\n"
    config = write("config.yaml", f"agent: my_agent:solve\nalgorithm: baseline\ntrain_dataset: [1]\n{resources}")
    message = rf":7: initial_resources\.main\.template is '{template}', which names a file; give the text of the prompt"
    with pytest.raises(ConfigError, match=message):
        load_job(config, dry_run=True)
