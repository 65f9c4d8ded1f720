"""What `--set` sets over a config file."""

from pathlib import Path
from typing import Any

import pytest

from lightning_core.config.files import ConfigFile, override
from lightning_core.errors import ConfigError

PATH = Path("config.yaml")


def overridden(values: dict[str, Any], *assignments: str) -> dict[str, Any]:
    return override(ConfigFile(PATH, values), assignments).values


@pytest.mark.parametrize(
    ("values", "assignment", "result"),
    [
        ({"algorithm": {"name": "apo", "seed": 1}}, "algorithm.seed=2", {"algorithm": {"name": "apo", "seed": 2}}),
        ({"algorithm": "apo"}, "algorithm.beam_width=2", {"algorithm": {"name": "apo", "beam_width": 2}}),
        ({"algorithm": {"name": "apo", "seed": 1}}, "algorithm=baseline", {"algorithm": "baseline"}),
        ({"algorithm": "apo"}, "algorithm.name=baseline", {"algorithm": {"name": "baseline"}}),
        ({}, "runner.heartbeat_interval=0.5", {"runner": {"name": "agent", "heartbeat_interval": 0.5}}),
        ({"n_runners": 8}, "n_runners=", {"n_runners": None}),
        ({}, "agent = my_agent:solve", {"agent": "my_agent:solve"}),
        ({"train_dataset": "a.jsonl"}, "train_dataset=b.jsonl", {"train_dataset": "b.jsonl"}),
        (
            {"train_dataset": "hf:gsm8k"},
            "train_dataset.split=test[:10]",
            {"train_dataset": {"name": "hf:gsm8k", "split": "test[:10]"}},
        ),
        ({"train_dataset": [1, {"q": 2}]}, "train_dataset.1.q=3", {"train_dataset": [1, {"q": 3}]}),
        ({"hooks": ["a:b", "c:d"]}, "hooks.0=e:f", {"hooks": ["e:f", "c:d"]}),
        ({}, "rollout_config.timeout_seconds=60", {"rollout_config": {"timeout_seconds": 60}}),
        (
            {},
            "initial_resources.p={resource_type: prompt_template, template: 'Hello, {name}'}",
            {"initial_resources": {"p": {"resource_type": "prompt_template", "template": "Hello, {name}"}}},
        ),
        (
            {"initial_resources": {"p": {"template": "a"}}},
            'initial_resources.p.template="a: {b}=c"',
            {"initial_resources": {"p": {"template": "a: {b}=c"}}},
        ),
    ],
)
def test_value_is_put_where_the_keys_lead(values: dict[str, Any], assignment: str, result: dict[str, Any]) -> None:
    before = repr(values)
    assert overridden(values, assignment) == result
    assert repr(values) == before


def test_later_ones_win() -> None:
    values: dict[str, Any] = {"algorithm": "apo"}
    assert overridden(values, "algorithm.seed=1", "algorithm.seed=2") == {"algorithm": {"name": "apo", "seed": 2}}
    assert overridden(values, "algorithm.seed=1", "algorithm=baseline") == {"algorithm": "baseline"}


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("alogrithm.seed=1", "--set alogrithm.seed: unknown key 'alogrithm'. Did you mean 'algorithm'?"),
        ("sk-secret", "--set takes KEY=VALUE, with dots between keys, as in: --set algorithm.beam_width=2"),
        ("algorithm..seed=1", "--set takes KEY=VALUE"),
        ("agent.module=a", "--set agent.module: agent is a text, which has nothing inside to set; set it as a whole"),
        ("algorithm.seed.a=1", "--set algorithm.seed.a: algorithm.seed is a number, which has nothing inside"),
        (
            "hooks.first=a:b",
            "--set hooks.first: hooks is a list of 1; name an element of it by its index from 0, not by 'first', or",
        ),
        ("hooks.1=a:b", "--set hooks.1: hooks is a list of 1; "),
        ("n_runners={a: 1, a: 2}", "--set n_runners: the key 'a' is there twice, first on line 1; put quotes around"),
        ("agent=[a", "--set agent: no valid YAML: "),
    ],
)
def test_what_cannot_be_set_says_why_and_shows_no_value(assignment: str, message: str) -> None:
    values = {"agent": "a:b", "algorithm": {"name": "apo", "seed": 1}, "n_runners": 2, "hooks": ["a:b"]}
    with pytest.raises(ConfigError) as raised:
        overridden(values, assignment)
    assert str(raised.value).startswith(message)
    assert "secret" not in str(raised.value)


def test_place_that_was_set_is_told_by_what_set_it() -> None:
    lines: dict[tuple[str | int, ...], int] = {("algorithm",): 2, ("algorithm", "seed"): 3, ("agent",): 1}
    file = ConfigFile(PATH, {"agent": "a:b", "algorithm": {"name": "apo", "seed": 1}}, lines)
    one = override(file, ["algorithm.seed=2"])
    assert one.where(("algorithm", "seed")) == "--set algorithm.seed"
    assert one.where(("algorithm", "seed", 0)) == "--set algorithm.seed"
    assert one.where(("algorithm", "name")) == "config.yaml:2"
    assert one.where(("agent",)) == "config.yaml:1"
    whole = override(file, ["algorithm.seed=2", "algorithm={name: apo, seed: 3}"])
    assert whole.where(("algorithm", "seed")) == "--set algorithm"
    assert file.where(("algorithm", "seed")) == "config.yaml:3"
