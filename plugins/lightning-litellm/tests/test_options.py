"""When the library is imported, and which options are wrong."""

import json
import subprocess
import sys
from typing import Any

import pytest
from lightning_litellm import LitellmBackend
from lightning_proxy.model_list import make_replicas

from lightning_core.errors import ConfigError
from lightning_core.registry import default_registry

PROGRAM = """
import asyncio, json, sys
from lightning_proxy import LLMProxy
from lightning_core.registry import default_registry

async def main():
    listed = [each.name for each in default_registry().components("backends")]
    async with LLMProxy(key="", allow_unattributed=True, model_list=[
        {"model_name": "small", "litellm_params": {"model": "hosted_vllm/small", "api_base": "http://127.0.0.1:1/v1"}},
    ]) as proxy:
        before = sorted({"litellm", "lightning_litellm"} & set(sys.modules))
        proxy.update_model_list([{"model_name": "claude", "litellm_params": {"model": "anthropic/claude-sonnet-4-5"}}])
        after = sorted({"litellm", "lightning_litellm"} & set(sys.modules))
    print(json.dumps({"listed": listed, "before": before, "after": after}))

asyncio.run(main())
"""


def test_nothing_of_it_is_imported_before_it_is_configured_nor_the_library_before_the_first_call() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "litellm" in found["listed"]
    assert (found["before"], found["after"]) == ([], ["lightning_litellm"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "gpt-4o"}, "model is 'gpt-4o'; it begins with the provider, as litellm has it: anthropic/gpt-4o"),
        ({"model": "hosted_vllm/small"}, r"'hosted_vllm/small' has no api_base, and would go to OpenAI; give the URL"),
        ({"model": "openai/x", "api_key": "os.environ/NOT_SET_HERE"}, "the variable NOT_SET_HERE, which is not set"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LitellmBackend(**options)


def test_providers_that_do_not_speak_openais_api_come_here_by_themselves() -> None:
    entry = {"model_name": "claude", "litellm_params": {"model": "anthropic/claude-sonnet-4-5"}}
    (replica,) = make_replicas([entry], default_registry())
    assert isinstance(replica.backend, LitellmBackend)
    assert replica.backend.address == "litellm anthropic/claude-sonnet-4-5"
    assert replica.backend.gives_tokens is False
