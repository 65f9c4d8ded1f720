"""A value of the wrong kind is told when the proxy is made, and not by every call."""

from typing import Any

import pytest
from lightning_proxy import LLMProxy
from lightning_proxy.models import make_replicas

from lightning_core.errors import ConfigError
from lightning_core.registry import default_registry


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("port", "abc", "it has to be a whole number"),
        ("port", 70000, "it has to be 65535 or less"),
        ("host", 5, "it has to be a text"),
        ("allow_unattributed", "no", "it has to be true or false"),
        ("num_retries", 1.5, "it has to be a whole number"),
        ("max_concurrent_calls", 0, "it has to be more than 0"),
        ("pause_seconds", -3, "it has to be 0 or more"),
        ("pause_seconds", float("nan"), "it has to be a finite number"),
    ],
)
def test_a_wrong_value_is_refused_by_name(option: str, value: Any, wanted: str) -> None:
    with pytest.raises(ConfigError, match=f"^LLMProxy: {option} is .*; {wanted}"):
        LLMProxy(**{option: value})


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("timeout", 0, "it has to be more than 0"),
        ("stream_timeout", "soon", "it has to be a number"),
        ("max_connections", 2.5, "it has to be a whole number"),
        ("headers", {"x": 5}, "it has to be a text"),
        ("api_key", 5, "it has to be a text"),
    ],
)
def test_a_wrong_value_of_a_backend_names_its_entry(option: str, value: Any, wanted: str) -> None:
    params = {"model": "hosted_vllm/small", "api_base": "http://127.0.0.1:1/v1", option: value}
    entry = {"model_name": "small", "litellm_params": params}
    with pytest.raises(ConfigError, match=rf"^model_list\[0\] \(small\): backend 'openai': {option}.* is .*; {wanted}"):
        make_replicas([entry], default_registry())


def test_a_secret_of_the_wrong_kind_is_not_shown() -> None:
    with pytest.raises(ConfigError) as told:
        LLMProxy(key=31415926)  # type: ignore[arg-type]
    assert "31415926" not in str(told.value)
