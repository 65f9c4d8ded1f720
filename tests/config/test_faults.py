"""What is said of a config file with wrong values."""

from pathlib import Path

import pytest

from lightning_core.config import load_job
from lightning_core.errors import ConfigError

REQUIRED = "agent: my_agent:solve\nalgorithm: baseline\n"


def fault(folder: Path, text: str, name: str = "config.yaml") -> list[str]:
    """Return the lines of the error, without the folder."""
    (folder / name).write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_job(folder / name)
    return str(raised.value).replace(f"{folder}/", "").splitlines()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alogrithm: x\n", "config.yaml:3: unknown key 'alogrithm'. Did you mean 'algorithm'?"),
        ("\nn_runners: 0\n", "config.yaml:4: n_runners is 0; it has to be 1 or more"),
        ("n_runners: '4'\n", "config.yaml:3: n_runners is '4'; it has to be a whole number"),
        ("hooks: null\n", "config.yaml:3: hooks is null; it has to be a list"),
        (
            "store: 5\n",
            "config.yaml:3: store is 5; "
            "it has to be a name, 'package.module:Class', or a mapping with name and options",
        ),
        (
            "train_dataset: 5\n",
            "config.yaml:3: train_dataset is 5; it has to be a file, 'module:name', 'hf:name', "
            "{environment: name, ...}, or a list of samples",
        ),
        (
            "train_dataset:\n  name: train.jsonl\n",
            "config.yaml:4: train_dataset.name is 'train.jsonl'; it has to match pattern '^hf:.'",
        ),
        (
            "train_dataset:\n  name: hf:gsm8k\n  splt: test\n",
            "config.yaml:5: unknown key 'train_dataset.splt'. Did you mean 'split'?",
        ),
        (
            "rollout_config:\n  max_attempt: 2\n",
            "config.yaml:4: unknown key 'rollout_config.max_attempt'. Did you mean 'max_attempts'?",
        ),
        ("hooks:\n  - a:b\n  - 5\n", "config.yaml:5: hooks.1 is 5; it has to be a text"),
    ],
)
def test_wrong_value_is_shown_with_its_line(folder: Path, text: str, message: str) -> None:
    assert fault(folder, REQUIRED + text) == [message]


def test_all_faults_are_told_at_once(folder: Path) -> None:
    assert fault(folder, "algorithm: 5\nn_runner: 4\n") == [
        "config.yaml: the key 'agent' is missing",
        "config.yaml:1: algorithm is 5; "
        "it has to be a name, 'package.module:Class', or a mapping with name and options",
        "config.yaml:2: unknown key 'n_runner'. Did you mean 'n_runners'?",
    ]


def test_faults_of_keys_and_of_options_are_told_at_once_in_the_order_of_the_file(folder: Path) -> None:
    text = "agent: my_agent:solve\nalgorithm:\n  name: baseline\n  n_epoch: 2\nn_runner: 4\nstore: memry\nhooks: 5\n"
    assert [line.split(": ")[0] for line in fault(folder, text)] == [f"config.yaml:{line}" for line in (4, 5, 6, 7)]


def test_what_is_wrong_in_toml_is_told_with_its_key(folder: Path) -> None:
    text = 'agent = "my_agent:solve"\nalgorithm = "baseline"\nn_runner = 4\n[rollout_config]\nmax_attempts = "two"\n'
    assert fault(folder, text, "config.toml") == [
        "config.toml: rollout_config.max_attempts is 'two'; it has to be a whole number",
        "config.toml: unknown key 'n_runner'. Did you mean 'n_runners'?",
    ]


PROMPT = REQUIRED + "initial_resources:\n  main_prompt:\n"


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (
            "    resource_type: prompt_template\n    tempalte: Hello\n",
            [
                "config.yaml:4: the key 'initial_resources.main_prompt.template' is missing",
                "config.yaml:6: unknown key 'initial_resources.main_prompt.tempalte'. Did you mean 'template'?",
            ],
        ),
        (
            "    template: Hello\n",
            [
                "config.yaml:4: the key 'initial_resources.main_prompt.resource_type' is missing; "
                "it is one of llm, proxy_llm, prompt_template"
            ],
        ),
        (
            "    resource_type: prompt_tempalte\n    template: Hello\n",
            [
                "config.yaml:5: initial_resources.main_prompt.resource_type is 'prompt_tempalte'; "
                "it is one of llm, proxy_llm, prompt_template. Did you mean 'prompt_template'?"
            ],
        ),
        (
            "    Hello\n",
            [
                "config.yaml:4: initial_resources.main_prompt is 'Hello'; "
                "it has to be a mapping, as in {resource_type: prompt_template, template: ...}"
            ],
        ),
    ],
)
def test_fault_inside_of_a_resource_names_its_key_and_line(folder: Path, text: str, messages: list[str]) -> None:
    assert fault(folder, PROMPT + text) == messages


def test_secrets_are_not_shown(folder: Path) -> None:
    llm = "    resource_type: llm\n    endpoint: http://localhost/v1\n    model: [sk-123]\n    api_key: 123\n"
    text = "\n".join(fault(folder, PROMPT + llm))
    assert "api_key is a number" in text
    assert "123" not in text


def test_long_values_are_shortened(folder: Path) -> None:
    (message,) = fault(folder, REQUIRED + f"n_runners: {'x' * 500}\n")
    assert message.startswith("config.yaml:3: n_runners is 'xxx")
    assert len(message) < 160
