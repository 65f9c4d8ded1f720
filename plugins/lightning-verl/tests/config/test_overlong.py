import pytest
from lightning_verl.config import load_settings

from lightning_core.errors import ConfigError


def test_what_becomes_of_long_responses_is_said_under_our_own_key() -> None:
    keys = {"mask_truncated": True, "overlong_buffer": 4, "overlong_penalty": 0.5}
    learning = load_settings({"agentlightning": keys}).learning
    assert {name: getattr(learning, name) for name in keys} == keys


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"overlong_buffer": 4, "credit": "per_call"},
            "agentlightning.credit is 'per_call': agentlightn",
        ),
        ({"overlong_penalty": 2.0}, "has an effect with agentlightning.overlong_buffer; set that"),
        ({"overlong_buffer": -1}, "overlong_buffer is -1"),
    ],
)
def test_a_punishment_that_would_not_be_given_is_refused(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_settings({"agentlightning": keys})
