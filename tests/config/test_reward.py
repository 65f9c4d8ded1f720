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
