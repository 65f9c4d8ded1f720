"""What a manifest keeps of what was set over the config: no secret, and all that a run needs to go on."""

from pathlib import Path
from typing import Any

import pytest

from lightning_core.cli.job import all_overrides, hidden_keys, job_origin
from lightning_core.config import load_job
from lightning_core.errors import RunFolderError

CONFIG = """
algorithm: baseline
agent: {url: "http://127.0.0.1:1/", headers: {X-Team: blue}}
train_dataset: [1]
llm_proxy:
  model_list:
  - {model_name: small, litellm_params: {model: hosted_vllm/small, api_base: "http://127.0.0.1:1/v1"}}
"""
PARAMS = "llm_proxy.model_list.0.litellm_params"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PASS", "secret-5")
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


@pytest.mark.parametrize(
    "override",
    [
        "agent.headers.X-Pass=secret-5",
        "agent.headers={X-Pass: secret-5}",
        "agent={url: 'http://127.0.0.1:1/', headers: {X-Pass: secret-5}}",
        f"{PARAMS}.headers.X-Pass=secret-5",
        f"{PARAMS}.api_key=secret-5",
        f" {PARAMS}.api_key = secret-5",
        f"{PARAMS}={{model: hosted_vllm/small, api_base: 'http://127.0.0.1:1/v1', api_key: secret-5}}",
        "agent.url=http://me:secret-5@127.0.0.1:1/",
    ],
)
def test_no_secret_is_kept_wherever_it_was_set(config: Path, override: str) -> None:
    origin = job_origin(config, load_job(config, overrides=[override, "n_runners=2"]), [override, "n_runners=2"])
    assert "secret-5" not in origin.model_dump_json()
    key = override.partition("=")[0].strip()
    assert origin.overrides == [f"{key}=***", "n_runners=2"]
    with pytest.raises(RunFolderError, match=f"add them again: --set {key}=VALUE$"):
        all_overrides(origin.overrides, [], run_id="run-1")
    assert all_overrides(origin.overrides, [override], run_id="run-1") == ["n_runners=2", override]


@pytest.mark.parametrize(
    "override",
    [
        "initial_resources.p={resource_type: prompt_template, template: 'as in sk-learn-pipelines-20'}",
        "rollout_config.metadata.model=hf-internal-testing/tiny-random-gpt2",
    ],
)
def test_prompts_and_names_of_models_are_kept(config: Path, override: str) -> None:
    assert job_origin(config, load_job(config), [override]).overrides == [override]


@pytest.mark.parametrize("place", ["agent.headers.X-Pass", f"{PARAMS}.api_key"])
def test_the_reference_to_a_variable_is_kept_and_works_again(config: Path, place: str) -> None:
    override = f"{place}=os.environ/PASS"
    origin = job_origin(config, load_job(config, overrides=[override]), [override])
    assert origin.overrides == [override]
    assert "secret-5" not in origin.model_dump_json()
    assert all_overrides(origin.overrides, [], run_id="run-1") == [override]


@pytest.mark.parametrize(
    ("kept", "given", "every"),
    [
        (["a.headers.X=***"], ["a.headers={X: 1}"], ["a.headers={X: 1}"]),  # the whole has the part
        (["a.headers.X=***"], ["a.headers.Y=1"], "a.headers.X"),
        (["a.headers=***"], ["a.headers.X=1"], "a.headers"),  # what else was in it is not known
        (["a.key=***", "a.key=***"], [], "a.key"),
        (["steps=1", "steps=2"], ["steps=3"], ["steps=3"]),
        (["ab=1"], ["a=2"], ["ab=1", "a=2"]),
    ],
)
def test_what_is_set_again_takes_the_place_of_what_was(kept: list[str], given: list[str], every: Any) -> None:
    if isinstance(every, list):
        assert all_overrides(kept, given, run_id="run-1") == every
        return
    with pytest.raises(RunFolderError, match=rf"run run-1 was started with secrets.*: --set {every}=VALUE$"):
        all_overrides(kept, given, run_id="run-1")


def test_what_is_missing_is_named_once() -> None:
    assert hidden_keys(["a.key=***", "b=1", "a.key=***", "c.key=***"]) == ["a.key", "c.key"]
