"""A job as a config file that says everything."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from lightning_core.config import load_job, resolved_config
from lightning_core.errors import AlgorithmError, ConfigError

WriteFile = Callable[..., Path]

CONFIG = """
agent: my_agent:solve
algorithm: {name: baseline, n_epochs: 2}
store: {name: memory, lease_seconds: 5}
initial_resources:
  main_prompt: {resource_type: prompt_template, template: "Hello\\n{name}"}
  main_llm: {resource_type: llm, endpoint: "https://me:pw@host/v1", model: m, api_key: key-123}
rollout_config: {timeout_seconds: 60}
train_dataset: [1, 0]
val_dataset: val.jsonl
"""


def resolved(path: Path, *overrides: str) -> str:
    return resolved_config(load_job(path, overrides=overrides, dry_run=True))


def test_everything_is_said_defaults_and_sizes_too(write: WriteFile) -> None:
    write("val.jsonl", "1\n")
    text = resolved(write("config.yaml", CONFIG), "n_runners=3", "strategy=local")
    assert text.startswith(
        "# train_dataset: 2 samples\n# val_dataset: 1 samples\n# at most 6 rollouts\nagent: my_agent:solve\n"
    )
    values = yaml.safe_load(text)
    assert values["algorithm"] == {"name": "baseline", "n_epochs": 2}
    assert values["store"]["lease_seconds"] == 5
    assert values["store"]["tracker"] is None
    assert values["tracer"]["name"] == "otel"
    assert values["runner"]["heartbeat_interval"] > 0
    assert {"tracer", "max_rollouts", "reward"}.isdisjoint(values["runner"])  # what the trainer gives
    assert values["strategy"] == {"name": "local"}
    assert values["n_runners"] == 3
    assert values["rollout_config"]["max_attempts"] == 1
    assert values["test_dataset"] is None
    assert values["hooks"] == []
    assert "    template: |-\n      Hello\n      {name}\n" in text


PLANNER = """
from lightning_core.algorithm import Algorithm
from lightning_core.errors import AlgorithmError

class Search(Algorithm):
    def plan(self, train_dataset=None, val_dataset=None):
        if val_dataset is None:
            raise AlgorithmError("search needs a val_dataset")
        return f"at most {len(val_dataset)} rollouts\\nand no calls of models"
    def run(self, train_dataset=None, val_dataset=None): pass
"""


def test_what_the_algorithm_plans_is_told(write: WriteFile) -> None:
    write("my_search.py", PLANNER)
    config = write("config.yaml", "agent: my_agent:solve\nalgorithm: my_search:Search\nval_dataset: [1]\n")
    assert resolved(config).startswith(
        "# val_dataset: 1 samples\n# at most 1 rollouts\n# and no calls of models\nagent: "
    )
    with pytest.raises(AlgorithmError, match=r"^search needs a val_dataset$"):
        resolved(config, "val_dataset=")


def test_secrets_are_hidden_wherever_they_stand(write: WriteFile) -> None:
    write(
        "my_search.py",
        "from lightning_core.algorithm import Algorithm\n"
        "class Search(Algorithm):\n"
        "    def __init__(self, **options): pass\n"
        "    def run(self, train_dataset=None, val_dataset=None): pass\n",
    )
    options = "{name: 'my_search:Search', max_tokens: 5, headers: {X-Api-Key: k1, Authorization: k2}, token: 12345678, "
    options += "rate: 1e-6, text: '1e-6', "
    options += "password: [k3], credentials: {user: k4}, database: 'mongodb://u:k5@host/db', days: [2026-01-31]}"
    text = resolved(write("config.yaml", f"agent: my_agent:solve\nalgorithm: {options}\n"))
    assert "\n  text: '1e-6'\n" in text
    values = yaml.safe_load(text)
    assert {name: str(value) for name, value in values["algorithm"].items()} == {
        "name": "my_search:Search",
        "max_tokens": "5",
        "headers": "{'X-Api-Key': '***', 'Authorization': '***'}",
        "token": "***",
        "rate": "1e-06",
        "text": "1e-6",
        "password": "['***']",
        "credentials": "***",
        "database": "mongodb://***@host/db",
        "days": "[datetime.date(2026, 1, 31)]",
    }


def test_secrets_are_not_told_by_their_looks(write: WriteFile) -> None:
    prompt = "A basic understanding, hf_abcdefghij1234567, http://me:pw@host, not "
    write("val.jsonl", "1\n")
    text = resolved(
        write("config.yaml", CONFIG),
        "initial_resources.main_llm.model=hf-internal-testing/tiny-random-gpt2",
        f"initial_resources.main_prompt.template={prompt}key-1234",
        "initial_resources.main_llm.api_key=key-1234",
    )
    resources = yaml.safe_load(text)["initial_resources"]
    assert resources["main_llm"]["model"] == "hf-internal-testing/tiny-random-gpt2"
    assert resources["main_prompt"]["template"] == f"{prompt}***"


def test_a_secret_that_was_hidden_is_asked_for(write: WriteFile) -> None:
    write("val.jsonl", "1\n")
    path = write("resolved.yaml", resolved(write("config.yaml", CONFIG)))
    line = 1 + path.read_text().splitlines().index("    api_key: '***'")
    with pytest.raises(ConfigError) as raised:
        load_job(path)
    endpoint, key = str(raised.value).splitlines()
    assert "initial_resources.main_llm.endpoint has '***' in place of a secret" in endpoint
    assert key == (
        f"{path}:{line}: initial_resources.main_llm.api_key has '***' in place of a secret; set it, as in --set "
        "initial_resources.main_llm.api_key=VALUE, or remove it where the environment has it"
    )
    task = write("tasks.yaml", "agent: my_agent:solve\nalgorithm: baseline\ntrain_dataset: ['***']\n")
    assert load_job(task, dry_run=True).train_dataset == ["***"]


KEYS = ("initial_resources.main_llm.api_key=key-123", "initial_resources.main_llm.endpoint=https://me:pw@host/v1")


def test_it_is_a_config_file_of_the_same_job(write: WriteFile) -> None:
    write("val.jsonl", "1\n")
    text = resolved(write("config.yaml", CONFIG), "n_runners=3")
    assert resolved(write("resolved.yaml", text), *KEYS) == text
    job = load_job(write("resolved.yaml", text), overrides=KEYS)
    assert job.fit().metrics == {"train_reward": 0.5, "val_reward": 1.0}


def test_store_of_a_dry_run_is_checked_and_not_built(write: WriteFile) -> None:
    write(
        "my_store.py",
        "from lightning_core.store import InMemoryLightningStore\n"
        "class Files(InMemoryLightningStore):\n"
        "    def __init__(self, path: str):\n"
        "        open(path, 'w').close()\n"
        "        super().__init__()\n",
    )
    config = write("config.yaml", "agent: my_agent:solve\nalgorithm: baseline\n")
    assert "store" not in yaml.safe_load(resolved(config)), "a run of it has its store in its folder, too"
    place = config.parent / "database"
    text = resolved(config, f"store={{name: 'my_store:Files', path: '{place}'}}")
    assert yaml.safe_load(text)["store"] == {"name": "my_store:Files", "path": str(place)}
    assert not place.exists()
    with pytest.raises(
        ConfigError, match=r"^--set store: store 'my_store:Files' has no option 'pth'.* Did you mean 'path'"
    ):
        resolved(config, "store={name: 'my_store:Files', pth: x}")
    with pytest.raises(ConfigError, match=r"^--set store: store: store 'my_agent:solve' is a FunctionalLitAgent"):
        resolved(config, "store=my_agent:solve")
