"""When the library is imported, and which options are wrong."""

import json
import subprocess
import sys
from typing import Any

import pytest
from lightning_litellm import LitellmBackend
from lightning_proxy import TokenCounts
from lightning_proxy.models import make_replicas, require_prices

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


def test_where_money_is_limited_a_model_of_openai_has_the_price_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    registry = default_registry()
    entries = [{"model_name": name, "litellm_params": {"model": name}} for name in ("openai/gpt-4o-mini", "openai/own")]
    known, unknown = make_replicas(entries, registry)
    require_prices([known], registry)
    assert known.cost(TokenCounts(1000, 1000)) == pytest.approx(
        0.00015 + 0.0006
    )  # OpenAI's list: $0.15 and $0.60 a million
    with pytest.raises(ConfigError, match=r"model_list \(openai/own\): 'own' has no known price, and usd is limited"):
        require_prices([unknown], registry)


def test_tiers_of_a_price_are_those_of_the_table() -> None:
    (gemini,) = make_replicas(
        [{"model_name": "m", "litellm_params": {"model": "gemini/gemini-2.5-pro", "api_key": "none"}}],
        default_registry(),
    )
    # Google's list: $1.25 a million of the prompt's tokens, and $2.50 where the prompt has more than 200,000.
    assert gemini.cost(TokenCounts(200_000, 0)) == pytest.approx(0.25)
    assert gemini.cost(TokenCounts(300_000, 0)) == pytest.approx(0.75)


def test_a_tier_in_an_entry_is_refused_and_not_left_out() -> None:
    info = {"input_cost_per_token": 1e-6, "input_cost_per_token_above_200k_tokens": 2e-6}
    entry = {"model_name": "m", "litellm_params": {"model": "openai/m", "api_base": "http://a:1"}, "model_info": info}
    with pytest.raises(
        ConfigError, match=r"model_list\[0\] \(m\): input_cost_per_token_above_200k_tokens is not counted"
    ):
        make_replicas([entry], default_registry())
