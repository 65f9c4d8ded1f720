"""The grader that a config file names."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lightning_core.config import load_job
from lightning_core.errors import ConfigError

WriteFile = Callable[..., Path]

GRADERS = """
from lightning_core.agent import Grader

def double(result): return 2 * result
def broken(results): return 1.0
ready = Grader(double)
"""
CONFIG = "agent: my_agent:solve\nalgorithm: baseline\ntrain_dataset: [0.25]\nreward: my_graders:{}\n"


@pytest.mark.parametrize("name", ["double", "ready"])
def test_config_names_a_grader(write: WriteFile, name: str) -> None:
    write("my_graders.py", GRADERS)

    assert load_job(write("config.yaml", CONFIG.format(name))).fit().metrics == {"train_reward": 0.5}


def test_grader_that_cannot_be_used_is_named_with_its_place(write: WriteFile) -> None:
    write("my_graders.py", GRADERS)

    with pytest.raises(ConfigError, match=r"config\.yaml:4: reward: grader broken has a parameter 'results' that"):
        load_job(write("config.yaml", CONFIG.format("broken")))
    with pytest.raises(ConfigError, match=r"config\.yaml:4: reward: .*has no 'doubl'.* Did you mean 'double'"):
        load_job(write("config.yaml", CONFIG.format("doubl")))


def test_config_names_a_grader_with_options(write: WriteFile) -> None:
    write(
        "my_graders.py",
        GRADERS + "class Scaled(Grader):\n    def __init__(self, by: int):\n        if by < 1: raise "
        "ValueError(f'by is {by}; it is 1 or more')\n        super().__init__(lambda result: by * result)\n",
    )
    config = "agent: my_agent:solve\nalgorithm: baseline\ntrain_dataset: [0.25]\nreward:\n  name: my_graders:Scaled\n"

    assert load_job(write("config.yaml", config + "  by: 3\n")).fit().metrics == {"train_reward": 0.75}
    for option, words in {
        "by: no": r"config\.yaml:6: grader 'my_graders:Scaled': by is false; it has to be a whole number",
        "by: 0": r"config\.yaml:6: reward: by is 0; it is 1 or more",
        "bi: 3": r"config\.yaml:6: grader 'my_graders:Scaled' has no option 'bi'; it takes: by",
    }.items():
        with pytest.raises(ConfigError, match=words):
            load_job(write("config.yaml", f"{config}  {option}\n"))


def test_an_unknown_grader_says_what_there_is(write: WriteFile) -> None:
    config = CONFIG.replace("my_graders:{}", "{}")
    with pytest.raises(
        ConfigError, match=r"config\.yaml:4: reward: no grader named 'juge'; installed: .*Did you mean 'judge'"
    ):
        load_job(write("config.yaml", config.format("juge")))
    with pytest.raises(ConfigError, match=r"config\.yaml:4: reward is 3; it has to be 'module:name' of a grader"):
        load_job(write("config.yaml", config.format(3)))
